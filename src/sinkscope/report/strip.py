"""A strip: what one head's keys receive at every step, drawn in a terminal.

    console.print(Strip(received=received, sinks=sinks, tokens=["<bos>", "a", "b"]))

Steps go down, positions to the right, the tokens of the finished text stand below. More ink is more attention, on dark
and on light terminals alike; a pair of brackets rings a sink. Colour is an addition: without it the letters say the
same, and where the terminal has no block characters plain ones stand in for them. A strip takes the width that it is
given; of more steps than rows some are shown, and where positions do not fit several share a cell, which shows the
highest of them.

Misleads: rows are picked evenly, so a sink that lives between two of them is not seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

SHADES = (0.04, 0.08, 0.16, 0.32)
"""Shares of attention from which on a cell has more ink."""
_BLOCKS, _PLAIN = " ░▒▓█", " .:*#"
_INK, _RING, _FAINT = "color(33)", "bold color(202)", "dim"
"""Blue and orange that can be read on black and on white."""
_MASKED = "·", "-"
_MARGIN = 10
"""Columns left of the cells, for the steps."""


@dataclass(frozen=True, kw_only=True)
class Strip:
    """Received attention `(step, position)`, shares with NaN where there is no key, with sinks `(step, position)`.

    tokens: texts of the positions, to stand below. masked: `(step, position)`, which tokens were masks still. rows: at
    most so many steps are shown. title: above it, plain text.
    """

    received: xr.DataArray
    sinks: xr.DataArray
    tokens: Sequence[str] = ()
    masked: xr.DataArray | None = None
    rows: int = 14
    title: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        count = self.received.sizes["position"]
        room = max(1, options.max_width - _MARGIN)
        together = ceil(count / room)  # positions in a cell
        wide = 2 if 2 * count <= room else 1
        plain = options.ascii_only
        if self.title:
            yield Text(self.title, style="bold")
        for step in picked(self.received.sizes["step"], self.rows):
            row = self._row(step, together, wide, plain)
            yield Text.assemble((f"{f'step {step}':>{_MARGIN - 2}}  ", _FAINT), *row, no_wrap=True)
        yield from self._axis(together, wide)

    def _row(self, step: int, together: int, wide: int, plain: bool) -> Iterator[tuple[str, str]]:
        shares = _cells(self._at(self.received, step).astype(np.float64), together, np.nan)
        sinks = _cells(self._at(self.sinks, step), together, False)
        masked = np.zeros_like(sinks)
        if self.masked is not None:
            masked = _cells(self._at(self.masked, step), together, False)
        letters = _PLAIN if plain else _BLOCKS
        for cell, sink, mask in zip(shares, sinks, masked, strict=True):
            some = ~np.isnan(cell)
            shade = int(np.searchsorted(SHADES, cell[some].max(), side="right")) if some.any() else 0
            if sink.any():
                yield ("()" if wide == 2 else "O"), _RING
            elif shade:
                yield letters[shade] * wide, _INK
            else:
                yield (_MASKED[plain] if mask.any() else " ").ljust(wide), _FAINT

    def _axis(self, together: int, wide: int) -> Iterator[Text]:
        if not self.tokens:
            return
        if together > 1:
            yield Text(
                f"{'':{_MARGIN}}{together} tokens a cell, from left to right",
                style=_FAINT,
                no_wrap=True,
                overflow="ellipsis",
            )
            return
        shown = "".join(_fitted(token, wide) for token in self.tokens)
        yield Text(f"{'':{_MARGIN}}{shown}", no_wrap=True)

    @staticmethod
    def _at(values: xr.DataArray, step: int) -> NDArray[np.generic]:
        found: NDArray[np.generic] = values.isel(step=step).transpose("position").values
        return found


class Legend:
    """What the letters of a strip mean, in a line."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        plain = options.ascii_only
        letters = (_PLAIN if plain else _BLOCKS)[1:]
        ink = " ".join(
            f"{letter} {share:.2f}".replace("0.", ".") for letter, share in zip(letters, SHADES, strict=True)
        )
        yield Text.assemble(
            (ink, _INK), (" and more received  ", _FAINT), ("()", _RING), (" sink  ", _FAINT),
            (f"{_MASKED[plain]} still a mask", _FAINT),
        )  # fmt: skip


def picked(steps: int, rows: int) -> list[int]:
    """At most `rows` of the steps 0 to `steps` - 1, evenly, the first and the last among them."""
    return sorted({round(float(one)) for one in np.linspace(0, steps - 1, min(steps, max(1, rows)))})


def _cells(values: NDArray[np.generic], together: int, fill: float | bool) -> NDArray[np.generic]:
    """(cell, position in it), filled up at the end."""
    lacking = -len(values) % together
    return np.pad(values, (0, lacking), constant_values=fill).reshape(-1, together)


def _fitted(token: str, wide: int) -> str:
    """A token in so many columns: its first letters."""
    text = "".join(letter if letter.isprintable() else " " for letter in token.strip()) or " "
    return set_cell_size(text, wide) if cell_len(text) != wide else text
