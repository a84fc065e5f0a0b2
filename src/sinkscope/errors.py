"""What a user is told in one line: a mistake that stops the work, and a caution that does not.

The command line prints either as a single line; after a mistake it exits with code 2. A library user catches the
mistake as `ValueError` and filters the caution as a `UserWarning`. The message says what was wanted, what came, and
what to do.
"""


class UserError(ValueError):
    """A mistake of the user's that one line explains: what was wanted, what came, what to do."""


class Caution(UserWarning):
    """Base of the cautions: the work goes on, but its result may not be what was meant."""


class TrainedLengthWarning(Caution):
    """The model can run what is asked, but was only trained on shorter texts."""


class NothingMaskedWarning(Caution):
    """An intervention was asked for, and took nothing away in the whole run."""


class OtherVersionsWarning(Caution):
    """Work goes on that other versions of packages began."""
