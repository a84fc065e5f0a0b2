"""While many requests run: a bar that counts them, and what to do where memory runs out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sinkscope.errors import memory_advice


@contextmanager
def counting(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error where somebody watches; give it the number of requests done so far."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        row = bar.add_task(what, total=total)
        yield lambda done: bar.update(row, completed=done)


def smaller_batches(batch_size: int) -> AbstractContextManager[None]:
    """Advise a smaller batch size where memory runs out in the block."""
    smaller = f"use --batch_size {batch_size // 2}" if batch_size > 1 else "use shorter texts or another device"
    return memory_advice(f"memory ran out with batch size {batch_size}: {smaller}")
