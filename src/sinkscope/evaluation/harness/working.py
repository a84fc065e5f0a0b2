"""While many requests run: a bar that counts them, and what to do where memory runs out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sinkscope.errors import UserError


@contextmanager
def counting(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error where somebody watches; give it the number of requests done so far."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        row = bar.add_task(what, total=total)
        yield lambda done: bar.update(row, completed=done)


@contextmanager
def memory_advice(batch_size: int) -> Iterator[None]:
    """Raise `UserError` with a smaller batch size where memory runs out."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        smaller = f"use --batch_size {batch_size // 2}" if batch_size > 1 else "use shorter texts or another device"
        raise UserError(f"memory ran out with batch size {batch_size}: {smaller}") from error


def _out_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return "can't allocate memory" in str(error) or "out of memory" in str(error)
