"""What an interrupt leaves of a command."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def told_at_interrupt(kept: Callable[[], str]) -> Iterator[None]:
    """An interrupt inside ends the command with a line that says what was kept."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise type(interrupt)(kept()) from None


def going_on(out: Path) -> str:
    """What an interrupt leaves of a training."""
    return f"what {out} holds is kept: the same command goes on from its last checkpoint"
