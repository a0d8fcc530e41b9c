"""The one exception for mistakes that a user can mend."""


class HCLError(Exception):
    """A mistake in the input. The message is for the user.

    It names the file, the key or the value, and says what to do. The command line prints it as
    one line and exits with status 1; from the library it is an ordinary exception.
    """

    def __str__(self) -> str:
        """One line: a file's name or a key may hold anything, a line break, codes of a terminal."""
        return "".join(sign if sign.isprintable() else " " for sign in super().__str__())
