"""The one exception that means "the input is at fault, not the program".

The command line prints it as a single line and exits with code 2; a library user catches it as `ValueError`.
Its message says what was wanted, what came, and what to do.
"""


class UserError(ValueError):
    """A mistake of the user's that one line explains: what was wanted, what came, what to do."""
