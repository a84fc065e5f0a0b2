"""What a user is told in one line: a mistake that stops the work, and a caution that does not.

The command line prints either as a single line; after a mistake it exits with code 2. A library user catches the
mistake as `ValueError` and filters the caution as a `UserWarning`. The message says what was wanted, what came, and
what to do. `refusing` stands around every call into another library that a user's file can break.
"""

from collections.abc import Iterator
from contextlib import contextmanager

_SHOWN = 300
"""Characters of a foreign message or of a name that are passed on."""
_PLAIN = (OSError, ValueError, RuntimeError, ImportError)
"""Errors whose messages are understood without the name of their class."""
_OUT_OF_MEMORY = ("OutOfMemory", "out of memory", "can't allocate memory")


class UserError(ValueError):
    """A mistake of the user's that one line explains: what was wanted, what came, what to do."""


class Caution(UserWarning):
    """Base of the cautions: the work goes on, but its result may not be what was meant."""


class TrainedLengthWarning(Caution):
    """The model can run what is asked, but was only trained on shorter texts."""


class NothingMaskedWarning(Caution):
    """An intervention was asked for, and took nothing away in the whole run."""


@contextmanager
def refusing(what: str, advice: str = "") -> Iterator[None]:
    """Turn whatever another library raises inside into one `UserError`: `what`, the library's reason, the advice.

    Interrupts and memory that ran out pass. A panic of a library in Rust is no `Exception`, and is turned all the same.
    """
    try:
        yield
    except (UserError, MemoryError):
        raise
    except BaseException as error:
        kind = type(error).__name__
        if not isinstance(error, Exception) and kind != "PanicException":
            raise
        if isinstance(error, RuntimeError) and any(words in f"{kind}: {error}" for words in _OUT_OF_MEMORY):
            raise
        said = shortened(getattr(error, "strerror", None) or str(error) or kind)
        reason = said if type(error) is Exception or (isinstance(error, _PLAIN) and str(error)) else f"{kind}: {said}"
        raise UserError(f"{what} ({reason}){'; ' if advice else ''}{advice}") from error


def shortened(text: str) -> str:
    """The text in one line that can be printed, cut where it is long."""
    line = " ".join(text.encode("utf-8", "replace").decode().split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."
