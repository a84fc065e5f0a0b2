"""Accuracy over the share sent, and a controller's queue: lines go through the numbers that were given."""

import json
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from report_samples import caption_of, figure_of, legend_labels, settings_of, xs, ys

from sinkscope.errors import UserError
from sinkscope.experiments.patches import FORM
from sinkscope.experiments.pictures import PatchCondition
from sinkscope.experiments.points import PatchCell
from sinkscope.intervals import wilson_interval
from sinkscope.report import selection
from sinkscope.report.figures import write_figure
from sinkscope.report.selection.queue import MOST, gathered, top_rate
from sinkscope.selection import find_channel
from sinkscope.selection.control import OperatingPoint, Simulation

AWGN = find_channel("awgn")
SHIFT = 0.02
"""Lines of the same budget stand up to so far from their share"""
N = 40


def row(
    way: str, alpha: float, right: int, *, sent: float | None = -1.0, snr: float | None = None, model: str = "m",
    mode: str = "exact", digital: bool = False, seed: int | None = None, rate: float = 0.25,
) -> PatchCell:  # fmt: skip
    """A finished cell in which so many of 40 pictures were right."""
    link: dict[str, Any] = {} if snr is None else {"channel": AWGN, "rate": rate, "snr": snr}
    condition = PatchCondition(way=way, alpha=alpha, mode=mode, digital=digital, seed=seed, **link)
    settings = {
        "model": {"name": model, "weights": model, "dtype": "torch.float32", "device": "cpu"},
        "measure": {"task": "made, test", "split": "test", "n": N, "pictures": "0"},
        "grid": FORM.kind,
        "versions": {},
        "condition": condition.to_dict(),
    }
    shares = {"sent": alpha, "most": alpha} if sent == -1.0 else {"sent": sent, "most": sent}
    stats = {
        "asked": alpha, **shares, "symbols": 1.0, "rho": 0.1, "fits": None, "bits": None, "camera": 1.0, "server": 1.0,
        "whole": 2.0,
    }  # fmt: skip
    measured = {
        "numerators": [1.0] * right + [0.0] * (N - right), "denominators": [1.0] * N, "exact": True,
        "better": "high", "unit": "share", "batch_size": 1, "seconds": 1.0, "stats": stats,
    }  # fmt: skip
    return FORM.cell(json.loads(json.dumps(settings)), measured)


def link(snr: float | None, model: str = "m") -> list[PatchCell]:
    """One link with every kind of way; soft gates send more than they were asked for."""
    common: dict[str, Any] = {"snr": snr, "model": model}
    rows = [
        row("whole", 1.0, 36, **common),
        row("gates", 0.5, 32, sent=0.55, **common),
        row("gates", 0.1, 24, sent=0.15, **common),
        row("gates", 0.1, 28, sent=0.626, mode="soft", **common),
        row("random", 0.1, 10, seed=0, **common),
        row("random", 0.1, 14, seed=1, **common),
    ]
    return rows + ([] if snr is None else [row("jpeg", 0.5, 4, sent=None, digital=True, **common)])


def lines_of(ax: Axes) -> dict[str, ErrorbarContainer]:
    found = [one for one in ax.containers if isinstance(one, ErrorbarContainer)]
    return {str(one.get_label()): one for one in found}


def points_of(container: ErrorbarContainer) -> tuple[list[float], list[float]]:
    line = container.lines[0]
    return xs(line).tolist(), ys(line).tolist()


def test_lines_go_through_the_shares_that_were_sent() -> None:
    lines = lines_of(selection.share_curves(link(0.0)))
    assert list(lines) == ["gates", "gates (soft)", "random", "jpeg"]
    shares, scores = points_of(lines["gates"])
    np.testing.assert_allclose(shares, [0.15, 0.55, 1], atol=SHIFT)
    assert scores == [24 / N, 32 / N, 36 / N]  # the whole ends it
    assert points_of(lines["gates (soft)"]) == ([0.626], [28 / N])  # neither moved nor joined to the whole
    np.testing.assert_allclose(points_of(lines["jpeg"]), [[0.5], [4 / N]], atol=SHIFT)
    shares, scores = points_of(lines["random"])
    np.testing.assert_allclose(shares, [0.1, 1], atol=SHIFT)
    assert scores == [12 / N, 36 / N]  # both draws


def test_bars_are_the_intervals_over_pictures() -> None:
    container = lines_of(selection.share_curves(link(None)))["gates"]
    bars = container.lines[2][0]
    assert isinstance(bars, LineCollection)
    for segment, right in zip(bars.get_segments(), (24, 32, 36), strict=True):
        np.testing.assert_allclose(segment[:, 1], wilson_interval(right, N))


def test_every_link_has_a_panel_tokens_as_they_are_first() -> None:
    figure = selection.accuracy_by_share([*link(-10.0), *link(inf), *link(None), *link(10.0)])
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert titles == [
        "tokens as they are", "no noise, awgn, rate 0.25", "10 dB, awgn, rate 0.25", "-10 dB, awgn, rate 0.25",
    ]  # fmt: skip
    assert len({ax.get_ylim() for ax in figure.axes}) == 1  # panels are compared
    looks = [lines_of(ax)["random"].lines[0] for ax in figure.axes]
    assert len({(one.get_color(), one.get_marker()) for one in looks}) == 1
    found = lines_of(figure.axes[1])
    assert len({(one.lines[0].get_color(), one.lines[0].get_marker()) for one in found.values()}) == len(found)
    assert "m, made, test, n = 40" in caption_of(figure) and "95 % intervals" in caption_of(figure)
    [legend] = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["gates", "gates (soft)", "random", "jpeg"]


def test_models_are_averaged_and_each_has_a_dot() -> None:
    other = [row("whole", 1.0, 30, model="n"), row("gates", 0.5, 20, model="n")]
    ax = selection.share_curves([row("whole", 1.0, 36), row("gates", 0.5, 32), *other])
    assert points_of(lines_of(ax)["gates"])[1] == [26 / N, 33 / N]
    [dots] = [one for one in ax.lines if one.get_gid() == "models"]
    assert sorted(ys(dots).tolist()) == [20 / N, 30 / N, 32 / N, 36 / N]
    assert "dots: each of 2 models" in settings_of(ax)
    assert not [one for one in selection.share_curves(link(None)).lines if one.get_gid() == "models"]


def test_the_whole_alone_is_a_point() -> None:
    ax = selection.share_curves([row("whole", 1.0, 36)])
    assert points_of(lines_of(ax)["whole"]) == ([1.0], [36 / N])
    assert legend_labels(ax) == ["whole"]


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(UserError, match="one channel, rate and SNR"):
        selection.share_curves([*link(0.0), *link(10.0)])
    apart = [row("gates", 0.5, 20, model="n", snr=10.0), *link(0.0)]
    for wrong in ([], apart):
        with pytest.raises(UserError, match="of one model, or of several"):
            selection.accuracy_by_share(wrong)


def simulation(slots: int = 50, snr: Sequence[float] | None = None) -> Simulation:
    rng = np.random.default_rng()
    points = tuple(OperatingPoint(alpha, rate) for alpha in (0.1, 0.7) for rate in (0.05, 0.25))
    chosen, costs = rng.integers(4, size=slots), np.array([0.01, 0.05, 0.07, 0.35])
    return Simulation(
        points=points, snr=rng.normal(size=slots) if snr is None else np.array(snr), chosen=chosen,
        rho=costs[chosen], accuracy=rng.uniform(size=slots), queue=rng.uniform(1, 2, size=slots),
    )  # fmt: skip


def line_of(ax: Axes, gid: str) -> Line2D:
    [found] = [one for one in ax.lines if one.get_gid() == gid]
    return found


def test_panels_show_every_slot_of_a_short_run() -> None:
    run = simulation()
    figure = selection.queue_over_time(run, 0.1, title="a rule", settings="a table")
    values = [run.snr, run.alpha, run.rate, run.rho, run.queue]
    for ax, expected in zip(figure.axes, values, strict=True):
        line = line_of(ax, "mean")
        np.testing.assert_array_equal(xs(line), np.arange(1, 51))
        np.testing.assert_array_equal(ys(line), expected)
    assert [ax.get_ylabel() for ax in figure.axes] == [
        "SNR, dB",
        "share\nchosen",
        "rate\nchosen",
        "rho sent",
        "queue Z",
    ]
    assert figure.axes[0].get_title(loc="left") == "a rule"
    assert caption_of(figure).startswith("a table; a step a slot")


def test_the_mean_rate_is_held_against_the_limit() -> None:
    run = simulation(slots=3 * MOST)
    ax = selection.queue_over_time(run, 0.125).axes[3]
    so_far = line_of(ax, "so-far")
    assert ys(so_far)[0] == run.rho[0]
    assert ys(so_far)[-1] == pytest.approx(run.mean_rate)
    np.testing.assert_allclose(ys(line_of(ax, "limit")), 0.125)
    assert legend_labels(ax) == ["mean so far", "limit 0.125"]


def test_many_slots_become_a_line_and_a_band() -> None:
    run = simulation(slots=5 * MOST)
    figure = selection.queue_over_time(run, 0.1)
    line = line_of(figure.axes[4], "mean")
    np.testing.assert_allclose(ys(line), run.queue.reshape(-1, 5).mean(1))
    [band] = [one for one in figure.axes[4].collections if one.get_gid() == "band"]
    assert isinstance(band, PolyCollection)
    corners = band.get_paths()[0].vertices
    assert np.asarray(corners)[:, 1].max() == pytest.approx(run.queue.max())
    assert "of about 5 slots each" in caption_of(figure)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=3 * MOST))
def test_neighbours_are_put_together_without_loss(given_values: list[float]) -> None:
    values = np.array(given_values)
    slots, means, lows, highs = gathered(values)
    assert len(slots) == min(len(values), MOST)
    assert lows.min() == values.min() and highs.max() == values.max()
    tolerance = 1e-9 * max(1.0, float(np.abs(values).max()))  # sums of at most 3 numbers round off less
    assert (lows <= means + tolerance).all() and (means <= highs + tolerance).all()
    assert (np.diff(slots) > 0).all() and slots[0] >= 1 and slots[-1] <= len(values)


def test_slots_beyond_the_axis_of_rates_are_told() -> None:
    run = simulation(slots=300)
    run.rho[:] = 0.1
    run.rho[0] = 5.0
    figure = selection.queue_over_time(run, 0.1)
    assert figure.axes[3].get_ylim() == (0, top_rate(run.rho, 0.1))
    assert figure.axes[3].get_ylim()[1] < 0.3
    assert "rho beyond its axis in 1 slot, up to 5" in caption_of(figure)
    run.rho[0] = 0.1
    assert "beyond" not in caption_of(selection.queue_over_time(run, 0.1))


def test_slots_without_noise_have_no_decibels() -> None:
    figure = selection.queue_over_time(simulation(slots=4, snr=[inf] * 4), 0.1)
    assert [text.get_text() for text in figure.axes[0].texts] == ["no noise"]
    assert not figure.axes[0].get_yticks().size
    figure = selection.queue_over_time(simulation(slots=3, snr=[5.0, inf, 7.0]), 0.1)
    [line] = figure.axes[0].lines
    np.testing.assert_array_equal(ys(line), [5.0, np.nan, 7.0])


def test_the_same_inputs_give_the_same_bytes(tmp_path: Path) -> None:
    """Whatever the user has set, and no setting is changed."""
    run, rows = simulation(slots=MOST + 7), [*link(None), *link(0.0)]

    def draw(name: str) -> list[bytes]:
        drawn: list[Figure] = [
            selection.queue_over_time(run, 0.1),
            selection.accuracy_by_share(rows),
            figure_of(selection.share_curves(link(0.0))),
        ]
        files = [tmp_path / f"{name}-{number}.svg" for number in range(len(drawn))]
        for figure, file in zip(drawn, files, strict=True):
            write_figure(figure, file)
        return [file.read_bytes() for file in files]

    once = draw("one")
    with mpl.rc_context({"svg.hashsalt": "other", "font.size": 23.0, "lines.linewidth": 9.0, "axes.grid": True}):
        before = dict(mpl.rcParams)
        assert draw("two") == once
        assert dict(mpl.rcParams) == before
