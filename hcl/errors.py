"""The one exception for mistakes that a user can mend."""


class HCLError(Exception):
    """A mistake in the input. The message is for the user.

    It names the file, the key or the value, and says what to do. The command line prints it as
    one line and exits with status 1; from the library it is an ordinary exception.
    """
