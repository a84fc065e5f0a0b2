"""What a comparison says: is a way to choose patches any better than choosing them at random?

Every way is set against `random` at the same share, over the same link and on the same pictures, draws and models
averaged. At a share of 1 there is nothing to choose, and all patches stand for it. Beyond or behind random is a
difference whose 95 % interval over pictures leaves out zero; of too few pictures nothing is said. With several models
their own differences stand beside it.

Misleads: among many comparisons some leave out zero by chance. A way that does not keep its budget is compared at the
share that it was asked for, so look at what it sent. A picture sent as a file is compared at the same number of
symbols, but the file is held to arrive at a capacity that no real code reaches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sinkscope.evaluation.grids import VERDICTS, Difference, difference
from sinkscope.selection.grid.cells import CONTROL, WHOLE, plain_snr, snr_label
from sinkscope.selection.grid.points import Point, Spread, weighed_alike, widest

_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False, kw_only=True)
class Contrast:
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
        alpha, channel, rate, _ = self.point.cell.place
        row = self.point.rows[0]
        return {
            "model": self.point.name,
            "task": row.task,
            "way": self.point.cell.label,
            "alpha": alpha,
            "channel": channel,
            "rate": rate,
            "snr": plain_snr(self.point.cell.snr),
            "draws": self.draws,
            "n": row.outcome.n,
            **self.gain.to_dict("gain"),
            **spread_fields("models", self.models),
        }


def spread_fields(prefix: str, found: Spread | None) -> dict[str, float | None]:
    """A spread, flat."""
    names = ("mean", "lowest", "highest")
    low, high = (None, None) if found is None or found.interval is None else found.interval
    plain = {f"{prefix}_{name}": None if found is None else getattr(found, name) for name in names}
    return {**plain, f"{prefix}_low": low, f"{prefix}_high": high}


def contrast(point: Point, among: Sequence[Point]) -> Contrast | None:
    """A point against random patches; None for random itself and for the whole, and where there is no control."""
    control = _control_of(point, among)
    if point.cell.way in (CONTROL, WHOLE) or control is None:
        return None
    gain = difference(weighed_alike(point), weighed_alike(control))
    ours, theirs = point.scores, control.scores
    return Contrast(
        point=point,
        draws=control.draws,
        gain=gain,
        models=Spread.of([ours[model] - theirs[model] for model in ours]) if len(ours) > 1 else None,
    )


def contrasts(among: Sequence[Point]) -> list[Contrast]:
    """Every point that can be set against random patches."""
    return [found for point in among if (found := contrast(point, among)) is not None]


def verdicts(among: Sequence[Point]) -> list[str]:
    """A sentence for every way to choose and link, of all models together where there are several; and who broke the
    budget."""
    shown = widest(among)
    said = [_uncontrolled(some) for some in _by_way([one for one in shown if _lacks_control(one, among)])]
    by_way: dict[tuple[str, ...], list[Contrast]] = {}
    for point in shown:
        found = contrast(point, among)
        if found is not None:
            by_way.setdefault(_named(point), []).append(found)
    said += [_sentence(some) for some in by_way.values()]
    said += [_broken(point) for point in shown if breaks_budget(point)]
    return list(dict.fromkeys(said))  # what is sent does not hang on the link


def breaks_budget(point: Point) -> bool:
    """Whether more was sent of any picture than was asked for."""
    kept = [(row.weighed.most, row.weighed.asked) for row in point.rows]
    return any(most is not None and asked is not None and most > asked + _ROUNDING for most, asked in kept)


def _control_of(point: Point, among: Sequence[Point]) -> Point | None:
    way = WHOLE if point.cell.alpha == 1 else CONTROL
    for one in among:
        alike = one.cell.place == point.cell.place and one.models == point.models
        if alike and one.cell.way == way:
            return one
    return None


def _lacks_control(point: Point, among: Sequence[Point]) -> bool:
    return point.cell.way not in (CONTROL, WHOLE) and _control_of(point, among) is None


def _named(point: Point) -> tuple[str, ...]:
    return point.name, point.rows[0].task, point.cell.label, _over(point)


def _over(point: Point) -> str:
    """The link in words, nothing where there is none."""
    _, channel, rate, snr = point.cell.place
    return "" if rate is None or snr is None else f" over {channel} at rate {rate:g} and {snr_label(snr)}"


def _by_way(some: Sequence[Point]) -> list[list[Point]]:
    found: dict[tuple[str, ...], list[Point]] = {}
    for point in some:
        found.setdefault((point.name, point.rows[0].task), []).append(point)
    return list(found.values())


def _uncontrolled(some: Sequence[Point]) -> str:
    labels = ", ".join(dict.fromkeys(point.cell.label for point in some))
    return (
        f"{some[0].name}, {some[0].rows[0].task}: not set against random patches: {labels}; nobody knows whether any "
        "patches would have done (add random to --selector)"
    )


def _sentence(some: Sequence[Contrast]) -> str:
    one = some[0]
    draws = "" if one.draws == 1 else f" (mean of {one.draws} draws)"
    parts = []
    for verdict, words in VERDICTS.items():
        found = [f"{this.point.cell.alpha:g} {_told(this)}" for this in some if this.gain.verdict == verdict]
        if found:
            parts.append(f"{words} random{draws} at {', '.join(found)}")
    name, task, label, over = _named(one.point)
    return f"{name}, {task} (n = {one.point.rows[0].outcome.n}): {label}{over} is {'; '.join(parts)}"


def _told(one: Contrast) -> str:
    own = "" if one.models is None else f"; models {one.models.lowest:+.3f} to {one.models.highest:+.3f}"
    return f"({one.gain}{own})"


def _broken(point: Point) -> str:
    asked, sent, most = (point.weighed(name) for name in ("asked", "sent", "most"))
    return (
        f"{point.name}, {point.rows[0].task}: {point.cell.label} at {point.cell.alpha:g} sent {sent:.3f} of the "
        f"patches, {most:.3f} at most, where {asked:.3f} was asked for"
    )
