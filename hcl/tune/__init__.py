"""``tune``: a search over the parameters that a method has, on the validation part."""
