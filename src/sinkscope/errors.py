"""What a user is told in one line: a mistake that stops the work, and a caution that does not.

The command line prints either as a single line; after a mistake it exits with code 2. A library user catches the
mistake as `ValueError` and filters the caution as a `UserWarning`. The message says what was wanted, what came, and
what to do.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

MISTAKE, INTERRUPTED, TERMINATED = 2, 130, 143
"""Exit codes of the command lines; the last two are what a shell gives a process that SIGINT or SIGTERM ended."""


class UserError(ValueError):
    """A mistake of the user's that one line explains: what was wanted, what came, what to do."""


class Caution(UserWarning):
    """Base of the cautions: the work goes on, but its result may not be what was meant."""


class TrainedLengthWarning(Caution):
    """The model can run what is asked, but was only trained on shorter texts."""


class NothingMaskedWarning(Caution):
    """An intervention was asked for, and took nothing away in the whole run."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, which ends the work where Ctrl-C would."""


def interrupt_code(interrupt: BaseException | None) -> int:
    """The exit code after an interrupt."""
    return TERMINATED if isinstance(interrupt, Terminated) else INTERRUPTED


def end_at_sigterm() -> None:
    """From here on, SIGTERM raises `Terminated` in the main thread."""

    def end(_number: int, _frame: FrameType | None) -> None:
        raise Terminated

    signal.signal(signal.SIGTERM, end)


@contextmanager
def memory_advice(message: str) -> Iterator[None]:
    """Raise `UserError` with the message where memory runs out in the block; any other error goes on as it is."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not (isinstance(error, MemoryError) or "allocate memory" in str(error) or "out of memory" in str(error)):
            raise
        raise UserError(message) from error
