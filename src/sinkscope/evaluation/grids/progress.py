"""Where a grid stands: told at its start, after every batch and at its end.

The time left follows from the examples that were run so far, all cells alike: cells that score a layer twice or carry a
clean copy take longer than it says.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Progress:
    """A moment of a grid."""

    cells_done: int
    cells: int
    row: str
    """The cell that is run: model, task, keys, what is masked."""
    examples_done: int
    """In all cells that had to be run."""
    examples: int
    """In all cells that have to be run; those taken over do not count."""
    seconds_left: float | None
    """None before the first batch has ended."""


Observer = Callable[[Progress], None]


@dataclass(kw_only=True)
class Watch:
    """Counts cells and examples for an observer."""

    observer: Observer | None
    cells: int
    examples: int
    _start: float = field(default_factory=time.perf_counter)
    _cells_done: int = 0
    _before: int = 0
    """Examples of the cells that were run."""

    def tell(self, row: str, done: int = 0) -> None:
        """So many examples of this cell are done."""
        if self.observer is None:
            return
        examples = self._before + done
        elapsed = time.perf_counter() - self._start
        left = elapsed / examples * (self.examples - examples) if examples else None
        self.observer(
            Progress(
                cells_done=self._cells_done,
                cells=self.cells,
                row=row,
                examples_done=examples,
                examples=self.examples,
                seconds_left=left,
            )
        )

    def end(self, row: str, examples: int) -> None:
        """A cell has ended, of which so many examples were run."""
        self._cells_done += 1
        self._before += examples
        self.tell(row)
