"""Draws and models put together, and what is said of them, on outcomes that a test decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest
from picture_samples import made_cell
from scipy import stats

from sinkscope.experiments.patches import contrasts, verdicts
from sinkscope.experiments.pictures import PatchCondition
from sinkscope.experiments.points import PatchCell, Spread, points, widest
from sinkscope.selection import find_channel

N = 40
AWGN = {"channel": find_channel("awgn"), "rate": 0.25, "snr": 0.0}


def first(right: int, of: int = N) -> list[int]:
    """The first so many pictures are right."""
    return [1] * right + [0] * (of - right)


def rows_of(model: str, right: dict[str, int], alpha: float = 0.5) -> list[PatchCell]:
    return [made_cell(PatchCondition(way=way, alpha=alpha), first(count), model) for way, count in right.items()]


def test_draws_are_one_point() -> None:
    rows = [
        made_cell(PatchCondition(way="random", alpha=0.5, seed=seed), first(10 + 2 * seed), most=0.5 + seed / 10)
        for seed in range(3)
    ]
    [point] = points(rows)
    assert (point.name, point.models, point.draws) == ("m", (rows[0].experiment,), 3)
    assert point.outcome.score == pytest.approx(12 / N)
    assert point.stat("most") == 0.7 and point.stat("rho") == 0.125 and point.stat("fits") is None
    assert list(point.scores.values()) == pytest.approx([12 / N])


def test_models_count_alike_however_many_draws_they_have() -> None:
    draws = [made_cell(PatchCondition(way="random", alpha=0.5, seed=seed), first(32), "a") for seed in range(3)]
    rows = [*rows_of("a", {"gates": 32}), *draws, *rows_of("b", {"gates": 36, "random": 36})]
    [together] = [one for one in contrasts(points(rows)) if len(one.point.models) == 2]
    assert together.gain.value == pytest.approx(0) and together.draws == 1
    assert together.point.outcome.score == pytest.approx(34 / N)


def test_models_are_put_together_in_whatever_order_they_were_run() -> None:
    rows = [*rows_of("b", {"random": 10}), *rows_of("a", {"gates": 20, "random": 10}), *rows_of("b", {"gates": 30})]
    [together] = [one for one in contrasts(points(rows)) if len(one.point.models) == 2]
    assert together.gain.value == pytest.approx(15 / N)
    assert not [one for one in verdicts(points(rows)) if one.kind == "not controlled"]
    assert len({tuple(point.models) for point in points(rows) if len(point.models) == 2}) == 1


def test_budgets_are_kept_or_broken_row_by_row() -> None:
    rows = [
        made_cell(PatchCondition(way="gates", alpha=0.3), first(9), model, asked=asked, most=asked)
        for model, asked in (("a", 15 / 49), ("b", 5 / 16))
    ]
    assert not any(one.kind == "over budget" for one in verdicts(points(rows)))
    rows.append(made_cell(PatchCondition(way="gates", alpha=0.3), first(9), "c", asked=0.3, most=0.31))
    assert any(one.kind == "over budget" for one in verdicts(points(rows)))


def test_other_packages_behind_a_cell_are_no_other_experiment() -> None:
    """Noise is sionna's and files are pillow's; their versions stand in a cell where they decided its numbers."""
    file, random = rows_of("m", {"jpeg": 20, "random": 10})
    file = replace(file, settings={**file.settings, "versions": {**file.settings["versions"], "pillow": "1"}})
    assert [one.gain.value for one in contrasts(points([file, random]))] == pytest.approx([10 / N])
    other = replace(random, settings={**random.settings, "versions": {**file.settings["versions"], "torch": "1"}})
    assert contrasts(points([file, other])) == []


def test_a_cell_alone_keeps_wilsons_interval() -> None:
    [point] = points(rows_of("m", {"gates": N}))
    assert point.outcome.interval()[1] == 1.0 and point.outcome.interval()[0] < 1.0  # a bootstrap would have no width


def test_models_come_alone_and_then_together() -> None:
    rows = [
        row for number, model in enumerate("abc") for row in rows_of(model, {"gates": 20 + 4 * number, "random": 10})
    ]
    found = points(rows)
    assert [(point.name, point.condition.way) for point in found] == [
        *[(model, way) for model in "abc" for way in ("gates", "random")],
        ("all 3 models", "gates"), ("all 3 models", "random"),
    ]  # fmt: skip
    assert widest(found) == found[6:]
    spread = Spread.of(list(found[6].scores.values()))
    assert spread.interval is not None
    scores = [20 / N, 24 / N, 28 / N]
    assert (spread.mean, spread.lowest, spread.highest) == pytest.approx((24 / N, 20 / N, 28 / N))
    low, high = stats.t.interval(0.95, 2, np.mean(scores), stats.sem(scores))
    assert spread.interval == pytest.approx((low, high))


def test_models_on_other_pictures_stay_apart() -> None:
    rows = [made_cell(PatchCondition(way="gates", alpha=0.5), first(3, n), model) for model, n in (("a", 5), ("b", 6))]
    found = points(rows)
    assert [point.name for point in found] == ["a", "b"] and widest(found) == found


def test_what_one_model_alone_was_run_at_is_shown_beside_the_rest() -> None:
    rows = [*rows_of("a", {"gates": 8, "key-norm": 9}), *rows_of("b", {"gates": 7})]
    assert [(point.name, point.condition.way) for point in widest(points(rows))] == [
        ("a", "key-norm"),
        ("all 2 models", "gates"),
    ]


def test_a_gain_is_paired_picture_by_picture() -> None:
    ours, theirs = [1, 1, 0, 1] * 10, [1, 0, 0, 1] * 10
    rows = [
        made_cell(PatchCondition(way="gates", alpha=0.5), ours),
        made_cell(PatchCondition(way="random", alpha=0.5, seed=0), theirs),
    ]
    [one] = contrasts(points(rows))
    assert one.gain.value == pytest.approx(0.25) and one.models is None and one.gain.verdict == "beyond"
    # 10 of 40 pictures differ, all one way: the mean of 40 draws from {0, 1} with that share.
    low, high = stats.binom.ppf([0.025, 0.975], N, 0.25) / N
    assert (one.gain.low, one.gain.high) == pytest.approx((low, high), abs=2 / N)
    assert one.to_dict() == {
        "model": "m", "task": "noise, test", "way": "gates", "alpha": 0.5, "channel": None, "rate": None, "snr": None,
        "draws": 1, "n": N, "gain": one.gain.value, "low": one.gain.low, "high": one.gain.high, "p": one.gain.p,
        "verdict": "beyond",
        "models_mean": None, "models_lowest": None, "models_highest": None, "models_low": None, "models_high": None,
    }  # fmt: skip


def test_draws_and_models_of_the_control_are_averaged() -> None:
    rows = []
    for model, gates, random in (("a", 30, (10, 20)), ("b", 20, (10, 10))):
        rows.append(made_cell(PatchCondition(way="gates", alpha=0.5), first(gates), model))
        rows += [
            made_cell(PatchCondition(way="random", alpha=0.5, seed=seed), first(count), model)
            for seed, count in enumerate(random)
        ]
    found = contrasts(points(rows))
    assert [(one.point.name, one.draws) for one in found] == [("a", 2), ("b", 2), ("all 2 models", 2)]
    assert [one.gain.value for one in found] == pytest.approx([15 / N, 10 / N, 12.5 / N])
    together = found[2].models
    assert together is not None and together.interval is None
    assert (together.lowest, together.highest) == pytest.approx((10 / N, 15 / N))


@pytest.mark.parametrize("odd", [{"alpha": 0.25}, {"rate": 0.1}, {"snr": inf}, {"channel": find_channel("rayleigh")}])
def test_only_the_same_share_and_link_are_compared(odd: dict[str, object]) -> None:
    here = {"alpha": 0.5, **AWGN}
    rows = [
        made_cell(PatchCondition(way="gates", **here), first(20)),  # type: ignore[arg-type]
        made_cell(PatchCondition(way="random", seed=0, **{**here, **odd}), first(10)),  # type: ignore[arg-type]
    ]
    assert contrasts(points(rows)) == []
    assert [str(one) for one in verdicts(points(rows))] == [
        "m, noise, test: not set against random patches: gates; nobody knows whether any patches would have done (add "
        "random to --selector)"
    ]


def test_where_all_is_sent_the_whole_stands_for_random() -> None:
    rows = [
        made_cell(PatchCondition(way="whole", alpha=1.0, seed=0, **AWGN), first(30)),  # type: ignore[arg-type]
        made_cell(PatchCondition(way="jpeg", digital=True, alpha=1.0, **AWGN), first(10)),  # type: ignore[arg-type]
    ]
    [one] = contrasts(points(rows))
    assert (one.point.condition.way, one.gain.verdict) == ("jpeg", "behind") and one.gain.value == pytest.approx(-0.5)


def test_one_picture_is_compared_with_nothing() -> None:
    rows = [made_cell(PatchCondition(way=way, alpha=0.5), [1]) for way in ("gates", "random")]
    assert [one.gain.verdict for one in contrasts(points(rows))] == ["too few"]
    [sentence] = map(str, verdicts(points(rows)))
    assert "not compared with random" in sentence and "too few" in sentence


def said(right: dict[str, Sequence[int]]) -> list[str]:
    rows = [
        made_cell(PatchCondition(way=way, alpha=alpha, **AWGN), first(count))  # type: ignore[arg-type]
        for way, counts in right.items()
        for alpha, count in zip((0.1, 0.3), counts, strict=True)
    ]
    return [str(one) for one in verdicts(points(rows))]


def test_words_for_a_difference() -> None:
    found = said({"gates": (20, 11), "key-norm": (10, 3), "random": (10, 10)})
    assert len(found) == 2
    link = "over awgn at rate 0.25 and 0 dB"
    assert found[0].startswith(f"m, noise, test (n = 40): gates {link} is beyond random at 0.1 (+0.250, +0.0")
    assert "; within noise of random at 0.3 (+0.025, -0.0" in found[0]
    assert found[1].startswith(f"m, noise, test (n = 40): key-norm {link} is behind random at 0.3 (-0.175, -0.")
    assert found[1].endswith("; within noise of random at 0.1 (+0.000, -0.069 to +0.069)")


def test_models_have_one_sentence_together() -> None:
    rows = [
        *rows_of("a", {"gates": 30, "random": 10}), *rows_of("b", {"gates": 24, "random": 10}),
        *(made_cell(PatchCondition(way="random", alpha=0.5, seed=1), first(10), model) for model in "ab"),
    ]  # fmt: skip
    [sentence] = map(str, verdicts(points(rows)))
    assert sentence.startswith(
        "all 2 models, noise, test (n = 40): gates is beyond random, mean of 2 draws at 0.5 (+0.425, +"
    )
    assert sentence.endswith("; models +0.350 to +0.500)")


def test_a_broken_budget_is_told_once() -> None:
    stats: dict[str, Any] = {"asked": 0.5, "sent": 0.626, "most": 0.75}
    rows = [
        made_cell(PatchCondition(way="gates", alpha=0.49, mode="soft"), first(20), **stats),
        made_cell(PatchCondition(way="gates", alpha=0.49, mode="soft", **AWGN), first(20), **stats),  # type: ignore[arg-type]
        made_cell(PatchCondition(way="random", alpha=0.49, seed=0), first(10)),
        made_cell(PatchCondition(way="random", alpha=0.49, seed=0, **AWGN), first(10)),  # type: ignore[arg-type]
    ]
    assert [str(one) for one in verdicts(points(rows)) if one.kind == "over budget"] == [
        "m, noise, test: gates (soft) at 0.49 sent 0.626 of the patches, 0.750 at most, where 0.500 was asked for"
    ]
