"""What a user is told in one line: a mistake that stops the work, and a caution that does not.

The command line prints either as a single line; after a mistake it exits with code 2. A library user catches the
mistake as `ValueError` and filters the caution as a `UserWarning`. The message says what was wanted, what came, and
what to do. `refusing` stands around every call into another library that a user's file can break.
"""

import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

MISTAKE, INCOMPLETE, INTERRUPTED, TERMINATED = 2, 3, 130, 143
"""Exit codes of the command lines; the last two are what a shell gives a process that SIGINT or SIGTERM ended."""

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Letters that control a terminal, turn the direction of writing, or can't be encoded; not tabs and line breaks."""
_LONGEST = 2000
_SHOWN = 300
"""Characters of a foreign message or of a name that are passed on."""
_PLAIN = (OSError, ValueError, RuntimeError, ImportError)
"""Errors whose messages are understood without the name of their class."""
_OUT_OF_MEMORY = ("OutOfMemory", "out of memory", "allocate memory")


def clean(text: str, written: Callable[[str], str] = lambda one: one.encode("unicode_escape").decode()) -> str:
    """The text with letters that would control the terminal written as escapes; written: how one is."""
    return _CONTROLS.sub(lambda found: written(found[0]), text)


def one_line(message: str) -> str:
    """A message as a line for the terminal."""
    return _without_middle(clean(" ".join(message.split())))


def _without_middle(text: str) -> str:
    """A very long text, its beginning and its end alone."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"


class UserError(ValueError):
    """A mistake of the user's that one line explains: what was wanted, what came, what to do.

    A message that quotes several lines has spaces in place of their ends; one that quotes something very long loses its
    middle.
    """

    def __init__(self, message: str) -> None:
        super().__init__(_without_middle(" ".join(message.splitlines())))


class Caution(UserWarning):
    """Base of the cautions: the work goes on, but its result may not be what was meant."""


class TrainedLengthWarning(Caution):
    """The model can run what is asked, but was only trained on shorter texts."""


class NothingMaskedWarning(Caution):
    """An intervention was asked for, and took nothing away in the whole run."""


class OtherVersionsWarning(Caution):
    """Work goes on that other versions of packages began."""


class FailedCellsWarning(Caution):
    """Cells of a grid could not be measured; the others are there."""


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
        if not (isinstance(error, MemoryError) or any(words in str(error) for words in _OUT_OF_MEMORY)):
            raise
        raise UserError(message) from error
