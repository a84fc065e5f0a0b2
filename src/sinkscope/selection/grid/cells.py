"""The cells of a comparison: ways to choose what is sent x shares x links x draws.

    Grid(selectors=("gates", "random"), alphas=(0.1, 0.5), snrs=(None, 0.0)).cells_for("exact")

Every link has a cell `WHOLE`, in which all patches are sent; a share of 1 is that cell for every selector that keeps
its budget, so it is run once. An SNR of None hands the tokens over as they are; rates and channels don't matter there.
Only the gates have a threshold, so only they differ from mode to mode; the other selectors send exactly their budget.

A digital baseline sends the picture in as many complex symbols as an exact selection would send at that share and rate,
and the model sees all of what arrives. Its capacity is that of white Gaussian noise, so it stands beside that channel
alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from sinkscope.errors import UserError
from sinkscope.evaluation.grids.rows import number_in, text_in, whole_in
from sinkscope.seeds import MOST_SEED
from sinkscope.selection.budgets import check_alpha
from sinkscope.selection.channels import Channel, find_channel
from sinkscope.selection.digital import find_digital
from sinkscope.selection.link import Link, check_rate
from sinkscope.selection.modes import find_mode
from sinkscope.selection.selectors import Selector, find_selector

WHOLE, GATES, CONTROL, EXACT = "whole", "gates", "random", "exact"
"""The cell in which all patches are sent; the selector with a threshold; what all others must beat; its mode."""
_GAUSSIAN = "awgn"
DEFAULT_SELECTORS = (GATES, CONTROL, "cls-attention", "key-norm")
DEFAULT_ALPHAS = (0.1, 0.3, 0.5, 1.0)
DEFAULT_SNRS = (None, 0.0)
DEFAULT_RATES = (0.25,)


@dataclass(frozen=True, eq=False, kw_only=True)
class Cell:
    """One cell of a grid for one model."""

    way: str
    """A selector, a digital baseline, or `WHOLE`"""
    digital: bool = False
    alpha: float
    mode: str = EXACT
    channel: Channel | None = None
    """None: tokens are handed over without codec"""
    rate: float | None = None
    snr: float | None = None
    seed: int | None = None
    """Of random patches and of the channel; None where nothing is drawn"""

    @property
    def label(self) -> str:
        """How the patches are chosen; the mode where it is not the exact one."""
        return self.way if self.mode == EXACT else f"{self.way} ({self.mode})"

    @property
    def link(self) -> Link | None:
        """Of a selection."""
        if self.channel is None or self.rate is None or self.snr is None:
            return None
        return Link(self.channel, self.rate, self.snr)

    @property
    def selector(self) -> Selector:
        """Who chooses. For the whole it does not matter who."""
        if self.way == CONTROL:
            return find_selector(CONTROL, seed=self.seed)
        return find_selector(GATES if self.way == WHOLE else self.way)

    @property
    def place(self) -> tuple[float, str | None, float | None, float | None]:
        """Where in the grid, whoever chooses: share, channel, rate and SNR."""
        return self.alpha, None if self.channel is None else channel_label(self.channel), self.rate, self.snr

    @property
    def where(self) -> str:
        """The share, and the noise if any: "0.1 at 0 dB"."""
        return f"{self.alpha:g}" if self.snr is None else f"{self.alpha:g} at {snr_label(self.snr)}"

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        channel = None if self.channel is None else {"name": self.channel.name, **vars(self.channel)}
        return {
            "way": self.way,
            "digital": self.digital,
            "alpha": self.alpha,
            "mode": self.mode,
            "channel": channel,
            "rate": self.rate,
            "snr": plain_snr(self.snr),
            "seed": self.seed,
        }


def read_cell(kept: Mapping[str, Any]) -> Cell:
    """From what `to_dict` gave. Raises `KeyError`, `TypeError` or `ValueError` for what is none."""
    channel, snr = kept["channel"], kept["snr"]
    if not isinstance(kept["digital"], bool):
        raise ValueError("a file or none")
    return Cell(
        way=text_in(kept, "way"),
        digital=kept["digital"],
        alpha=number_in(kept, "alpha", most=1),
        mode=text_in(kept, "mode"),
        channel=None if channel is None else find_channel(**channel),
        rate=None if kept["rate"] is None else number_in(kept, "rate", most=1),
        snr=None if snr is None else float(snr),
        seed=None if kept["seed"] is None else whole_in(kept, "seed"),
    )


def channel_label(channel: Channel) -> str:
    """Its name and parameters: "erasure loss 0.1"."""
    return " ".join([channel.name, *(f"{name} {value:g}" for name, value in vars(channel).items())])


def snr_label(snr: float) -> str:
    """ "0 dB", "no noise"."""
    return f"{snr:g} dB" if math.isfinite(snr) else "no noise"


def plain_snr(snr: float | None) -> float | str | None:
    """As JSON, which has no infinity."""
    return "inf" if snr == math.inf else snr


@dataclass(frozen=True, kw_only=True)
class Grid:
    """What is varied: selectors and digital baselines x shares x channels x rates x SNRs x draws.

    modes: in which the gates honour the budget; None is the one that a model was trained in. snrs: in dB, inf for codec
    without noise, None for tokens handed over without codec. draws: of random patches and noise, from seed on.

    Raises `UserError` for unknown names, values out of range, anything named twice, and a grid without cells.
    """

    selectors: Sequence[str] = DEFAULT_SELECTORS
    digital: Sequence[str] = ()
    alphas: Sequence[float] = DEFAULT_ALPHAS
    snrs: Sequence[float | None] = DEFAULT_SNRS
    rates: Sequence[float] = DEFAULT_RATES
    channels: Sequence[Channel | str] = (_GAUSSIAN,)
    modes: Sequence[str | None] = (None,)
    draws: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        check_alpha(self.alphas)
        for rate in self.rates:
            check_rate(rate)
        for name in self.selectors:
            find_selector(name)
        for name in self.digital:
            find_digital(name)
        for mode in self.modes:
            find_mode(mode or EXACT)
        self._check_once()
        if not 0 <= self.seed <= MOST_SEED - self.draws:
            raise UserError(f"seed must lie between 0 and {MOST_SEED - self.draws}, got {self.seed}")
        if self.draws < 1:
            raise UserError(f"draws must be at least 1, got {self.draws}")
        if not all((self.alphas, self.snrs, self.rates, self.channels, self.modes)):
            raise UserError("the grid has no cells: give at least one share, SNR, rate, channel and mode")
        links = [one.link for one in self._links()]
        if self.digital and not any(link is not None and link.channel.name == _GAUSSIAN for link in links):
            raise UserError(
                f"{self.digital[0]} is sent at the capacity of white noise: it needs an SNR other than none, on the "
                f"channel {_GAUSSIAN}"
            )

    def cells_for(self, mode: str) -> list[Cell]:
        """All cells for a model that was trained in a mode: link by link, the whole first, then share by share."""
        modes = list(dict.fromkeys(one or mode for one in self.modes))
        return [cell for link in self._links() for one in self._at(link, modes) for cell in self._drawn(one)]

    def _links(self) -> list[Cell]:
        """The whole, over every link."""
        channels = [find_channel(one) if isinstance(one, str) else one for one in self.channels]
        found = [Cell(way=WHOLE, alpha=1.0)] if None in self.snrs else []
        for channel, rate, snr in product(channels, self.rates, self.snrs):
            if snr is not None:
                Link(channel, rate, snr)  # refuses what is no SNR
                found.append(Cell(way=WHOLE, alpha=1.0, channel=channel, rate=rate, snr=snr))
        return found

    def _at(self, whole: Cell, modes: Sequence[str]) -> Iterator[Cell]:
        """All cells over one link, each once."""
        link: dict[str, Any] = {name: getattr(whole, name) for name in ("channel", "rate", "snr")}
        yield whole
        for alpha in self.alphas:
            for way in self.selectors:
                for mode in modes if way == GATES else (EXACT,):
                    if (alpha, mode) != (1, EXACT):
                        yield Cell(way=way, alpha=alpha, mode=mode, **link)
            for way in self.digital if whole.channel is not None and whole.channel.name == _GAUSSIAN else ():
                yield Cell(way=way, digital=True, alpha=alpha, **link)

    def _drawn(self, cell: Cell) -> Iterator[Cell]:
        """The draws of a cell, one where nothing is drawn."""
        if not _is_drawn(cell):
            yield cell
            return
        for draw in range(self.draws):
            yield replace(cell, seed=self.seed + draw)

    def _check_once(self) -> None:
        channels = [one if isinstance(one, str) else channel_label(one) for one in self.channels]
        named: dict[str, Sequence[object]] = {
            "selector": self.selectors, "baseline": self.digital, "alpha": self.alphas, "SNR": self.snrs,
            "rate": self.rates, "channel": channels, "mode": self.modes,
        }  # fmt: skip
        for name, values in named.items():
            twice = [value for number, value in enumerate(values) if value in values[:number]]
            if twice:
                raise UserError(f"the {name} {twice[0]} is named twice; name each once")


def _is_drawn(cell: Cell) -> bool:
    """Whether patches or noise are drawn at random."""
    if cell.digital or cell.channel is None:
        return cell.way == CONTROL
    return cell.way == CONTROL or cell.channel.name != _GAUSSIAN or cell.snr != math.inf
