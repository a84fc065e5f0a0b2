"""Sending a share of the patches: what is each way to choose them worth, and is it better than chance?

    measure = measure_on(load_selective("fashion-mnist"), load_images("fashion-mnist").test, split="test")
    cells = compare_selectors([measure], PatchGrid(snrs=(None, 0.0, 10.0)))
    verdicts(points(cells))

Every way is set against `random` at the same share, over the same link and on the same pictures, draws and models
averaged. At a share of 1 there is nothing to choose, and all patches stand for it. Beyond or behind random is a
difference whose 95 % interval over pictures leaves out zero; of too few pictures nothing is said. With several models
their own differences stand beside it. Costs one pass over the pictures a cell.

Misleads: among many comparisons some leave out zero by chance. A way that does not keep its budget is compared at the
share that it was asked for, so look at what it sent. A picture sent as a file is compared at the same number of
symbols, but the file is held to arrive at a capacity that no real code reaches.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

from sinkscope.errors import UserError
from sinkscope.experiments.pictures import (
    CONTROL,
    EXACT,
    GATES,
    WHOLE,
    PatchCondition,
    PictureAccuracy,
    channel_label,
    check_picture_cell,
    measure_on,
    plain_snr,
    read_patch_condition,
    snr_label,
)
from sinkscope.experiments.points import PatchCell, Point, Spread, widest
from sinkscope.families.model import parse_device
from sinkscope.grids.away import Laid, Serving
from sinkscope.grids.contrast import Verdict, at_places, distinct, gain, not_controlled, told_draws
from sinkscope.grids.outcome import Difference
from sinkscope.grids.run import Keeping, Observer, Work, run_grid
from sinkscope.grids.store import Form, read_cells
from sinkscope.seeds import MOST_SEED
from sinkscope.selection.budgets import check_alpha
from sinkscope.selection.channels import Channel, find_channel
from sinkscope.selection.data import Preprocessing, Splits, load_images
from sinkscope.selection.digital import find_digital
from sinkscope.selection.link import Link, check_rate
from sinkscope.selection.modes import find_mode
from sinkscope.selection.saved import load_selective
from sinkscope.selection.selectors import find_selector

FORM = Form(
    "patches", "a comparison of selectors", "sinkscope select evaluate --out", read_patch_condition, check_picture_cell
)
DEFAULT_SELECTORS = (GATES, CONTROL, "cls-attention", "key-norm")
DEFAULT_ALPHAS = (0.1, 0.3, 0.5, 1.0)
DEFAULT_SNRS = (None, 0.0)
DEFAULT_RATES = (0.25,)
_GAUSSIAN = "awgn"
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class PatchGrid:
    """What is varied: selectors and digital baselines x shares x channels x rates x SNRs x draws.

    modes: in which the gates honour the budget; None is the one that a model was trained in. snrs: in dB, inf for codec
    without noise, None for tokens handed over without codec. draws: of random patches and noise, from seed on.

    Every link has a condition `WHOLE`, in which all patches are sent; a share of 1 is that for every selector that
    keeps its budget, so it is run once. Only the gates have a threshold, so only they differ from mode to mode. The
    capacity of a digital baseline is that of white Gaussian noise, so it stands beside that channel alone.

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

    def conditions(self, mode: str, batch_size: int) -> list[PatchCondition]:
        """All of them for a model that was trained in a mode: link by link, the whole first, then share by share.
        batch_size: pictures that noise is drawn for together."""
        modes = list(dict.fromkeys(one or mode for one in self.modes))
        found = [drawn for link in self._links() for one in self._at(link, modes) for drawn in self._drawn(one)]
        return [with_noise_batch(one, batch_size) for one in found]

    def _links(self) -> list[PatchCondition]:
        """The whole, over every link."""
        channels = [find_channel(one) if isinstance(one, str) else one for one in self.channels]
        found = [PatchCondition(way=WHOLE, alpha=1.0)] if None in self.snrs else []
        for channel, rate, snr in product(channels, self.rates, self.snrs):
            if snr is not None:
                Link(channel, rate, snr)  # refuses what is no SNR
                found.append(PatchCondition(way=WHOLE, alpha=1.0, channel=channel, rate=rate, snr=snr))
        return found

    def _at(self, whole: PatchCondition, modes: Sequence[str]) -> Iterator[PatchCondition]:
        """All conditions over one link, each once."""
        yield whole
        for alpha in self.alphas:
            for way in self.selectors:
                for mode in modes if way == GATES else (EXACT,):
                    if (alpha, mode) != (1, EXACT):
                        yield replace(whole, way=way, alpha=alpha, mode=mode)
            for way in self.digital if whole.channel is not None and whole.channel.name == _GAUSSIAN else ():
                yield replace(whole, way=way, digital=True, alpha=alpha)

    def _drawn(self, condition: PatchCondition) -> Iterator[PatchCondition]:
        """The draws of a condition, one where nothing is drawn."""
        if not _is_drawn(condition):
            yield condition
            return
        for draw in range(self.draws):
            yield replace(condition, seed=self.seed + draw)

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


def with_noise_batch(condition: PatchCondition, batch_size: int) -> PatchCondition:
    """The condition, with the number of pictures that noise is drawn for together where there is any."""
    noisy = condition.channel is not None and condition.seed is not None
    return replace(condition, noise_batch=batch_size if noisy else None)


def _is_drawn(condition: PatchCondition) -> bool:
    """Whether patches or noise are drawn at random."""
    if condition.digital or condition.channel is None:
        return condition.way == CONTROL
    return condition.way == CONTROL or condition.channel.name != _GAUSSIAN or condition.snr != math.inf


def compare_selectors(
    measures: Sequence[PictureAccuracy],
    grid: PatchGrid,
    keeping: Keeping | None = None,
    observer: Observer | None = None,
) -> list[PatchCell]:
    """Every cell of the grid for every model, in their order. Raises `UserError` as `run_grid` does."""
    laid = [Laid(model=one.model, measure=one, told={"mode": one.trained.model.mode}) for one in measures]
    return compare_laid(laid, grid, keeping, observer)


def compare_laid(
    laid: Sequence[Laid[PatchCondition]],
    grid: PatchGrid,
    keeping: Keeping | None = None,
    observer: Observer | None = None,
) -> list[PatchCell]:
    """The same of measures that `open_pictures` lays out, here or in workers."""
    work = [Work(one.model, one.measure, grid.conditions(one.told["mode"], one.measure.batch_size)) for one in laid]
    return run_grid(work, FORM, keeping, observer)


def open_pictures(key: Mapping[str, Any]) -> Serving[PatchCondition]:
    """A trained selection, `model`, on a `device`. Asked for: `data`, None for its own, `image_size`, None for that of
    its own data, and `data_seed`; `split`, `n` and `batch_size` as in `measure_on`."""
    trained = load_selective(key["model"])
    trained.model.to(parse_device(key["device"]))

    def lay(asked: Mapping[str, Any]) -> Laid[PatchCondition]:
        source = asked["data"] or trained.source
        scale = trained.preprocessing_of(source).at(asked["image_size"])
        part = getattr(_pictures(source, scale, asked["data_seed"]), asked["split"])
        measure = measure_on(trained, part, split=asked["split"], n=asked["n"], batch_size=asked["batch_size"])
        told = {"mode": trained.model.mode, "source": trained.source}
        return Laid(model=measure.model, measure=measure, told=told)

    return Serving(read_patch_condition, lay)


@lru_cache(maxsize=1)
def _pictures(source: str, preprocessing: Preprocessing, seed: int) -> Splits:
    """Models of one grid share them."""
    return load_images(source, preprocessing=preprocessing, seed=seed)


def read_selections(folder: Path) -> list[PatchCell]:
    """All cells that `sinkscope select evaluate` has kept in a folder."""
    return read_cells(folder, FORM)


def named_fields(point: Point) -> dict[str, Any]:
    """What names a point, flat."""
    alpha, channel, rate, snr = point.condition.place
    told = {"alpha": alpha, "channel": channel, "rate": rate, "snr": plain_snr(snr)}
    return {"model": point.name, "task": point.task, "way": point.condition.label, **told}


def spread_fields(prefix: str, found: Spread | None) -> dict[str, float | None]:
    """A spread, flat."""
    low, high = (None, None) if found is None or found.interval is None else found.interval
    plain = {
        f"{prefix}_{name}": None if found is None else getattr(found, name) for name in ("mean", "lowest", "highest")
    }
    return {**plain, f"{prefix}_low": low, f"{prefix}_high": high}


@dataclass(frozen=True, eq=False, kw_only=True)
class PatchContrast:
    """A point against random patches."""

    point: Point
    draws: int
    """Of random"""
    gain: Difference
    """How much larger the share of right answers is"""
    models: Spread | None
    """Of that gain in each model; None for one model"""

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            **named_fields(self.point),
            "draws": self.draws,
            "n": self.point.outcome.n,
            **self.gain.to_dict("gain"),
            **spread_fields("models", self.models),
        }


def contrast(point: Point, among: Sequence[Point]) -> PatchContrast | None:
    """A point against random patches; None for random itself and for the whole, and where there is no control."""
    control = _control_of(point, among)
    if point.condition.way in (CONTROL, WHOLE) or control is None:
        return None
    ours, theirs = point.scores, control.scores
    return PatchContrast(
        point=point,
        draws=control.draws,
        gain=gain("high", point.outcomes, control.outcomes),
        models=Spread.of([ours[model] - theirs[model] for model in ours]) if len(ours) > 1 else None,
    )


def contrasts(among: Sequence[Point]) -> list[PatchContrast]:
    """Every point that can be set against random patches."""
    return [found for point in among if (found := contrast(point, among)) is not None]


def verdicts(among: Sequence[Point]) -> list[Verdict]:
    """For every way to choose and link, of all models together where there are several; and who broke the budget."""
    shown = widest(among)
    alone: dict[str, list[str]] = {}
    by_way: dict[tuple[str, ...], list[PatchContrast]] = {}
    for point in shown:
        found = contrast(point, among)
        if found is not None:
            by_way.setdefault((_where(point), point.condition.label, _over(point)), []).append(found)
        elif point.condition.way not in (CONTROL, WHOLE):
            alone.setdefault(_where(point), []).append(point.condition.label)
    said = [not_controlled(where, labels, "patches", "--selector") for where, labels in alone.items()]
    said += [_compared(some) for some in by_way.values()]
    return distinct([*said, *(_broken(point) for point in shown if breaks_budget(point))])


def breaks_budget(point: Point) -> bool:
    """Whether more was sent of any picture than was asked for."""
    kept = [(cell.stats["most"], cell.stats["asked"]) for cell in point.cells]
    return any(most is not None and most > asked + _ROUNDING for most, asked in kept)


def _control_of(point: Point, among: Sequence[Point]) -> Point | None:
    way = WHOLE if point.condition.alpha == 1 else CONTROL
    for one in among:
        alike = one.condition.place == point.condition.place and one.models == point.models
        if alike and one.condition.way == way:
            return one
    return None


def _where(point: Point) -> str:
    return f"{point.name}, {point.task}"


def _over(point: Point) -> str:
    """The link in words, nothing where there is none."""
    _, channel, rate, snr = point.condition.place
    return "" if rate is None or snr is None else f" over {channel} at rate {rate:g} and {snr_label(snr)}"


def _compared(some: Sequence[PatchContrast]) -> Verdict:
    point = some[0].point
    found = []
    for one in some:
        spread = one.models
        own = "" if spread is None else f"; models {spread.lowest:+.3f} to {spread.highest:+.3f}"
        found.append((f"{one.point.condition.alpha:g}", one.gain, own))
    where, label = f"{_where(point)} (n = {point.outcome.n})", f"{point.condition.label}{_over(point)}"
    return at_places(where, label, told_draws("random", some[0].draws), found)


def _broken(point: Point) -> Verdict:
    asked, sent, most = (point.stat(name) for name in ("asked", "sent", "most"))
    said = (
        f"{point.condition.label} at {point.condition.alpha:g} sent {sent:.3f} of the patches, {most:.3f} at most, "
        f"where {asked:.3f} was asked for"
    )
    return Verdict(where=_where(point), kind="over budget", said=said)
