"""Which cells a grid has, and what it refuses."""

from __future__ import annotations

import json
from itertools import product
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinkscope.errors import UserError
from sinkscope.experiments.patches import PatchGrid
from sinkscope.experiments.pictures import PatchCondition, channel_label, read_patch_condition
from sinkscope.selection import CHANNELS, MODES, SELECTORS, find_channel
from sinkscope.selection.digital import DIGITAL

alphas = st.floats(0.01, 1.0)
snrs = st.one_of(st.none(), st.just(inf), st.floats(-40, 40))


def places(grid: PatchGrid, mode: str = "exact") -> list[tuple[Any, ...]]:
    return [(cell.label, cell.alpha, cell.rate, cell.snr, cell.seed) for cell in grid.conditions(mode, 4)]


def test_link_by_link_share_by_share_the_whole_first() -> None:
    grid = PatchGrid(selectors=("gates", "random"), alphas=(0.2, 1.0), snrs=(None, 3.0), rates=(0.1, 0.5), seed=7)
    assert places(grid) == [
        ("whole", 1.0, None, None, None), ("gates", 0.2, None, None, None), ("random", 0.2, None, None, 7),
        *[
            (label, alpha, rate, 3.0, 7)
            for rate in (0.1, 0.5)
            for label, alpha in (("whole", 1.0), ("gates", 0.2), ("random", 0.2))
        ],
    ]  # fmt: skip


def test_what_is_not_drawn_runs_once() -> None:
    grid = PatchGrid(
        selectors=("key-norm", "random"), digital=("jpeg",), alphas=(0.2,), snrs=(None, inf, 0.0),
        channels=("awgn", "rayleigh"), draws=3, seed=5,
    )  # fmt: skip
    drawn: dict[Any, list[int | None]] = {}
    for cell in grid.conditions("exact", 4):
        drawn.setdefault((cell.label, *cell.place[1:]), []).append(cell.seed)
    three = [5, 6, 7]
    for channel, snr in product(("awgn", "rayleigh"), (inf, 0.0)):
        still = channel == "awgn" and snr == inf
        assert (
            drawn["whole", channel, 0.25, snr] == drawn["key-norm", channel, 0.25, snr] == ([None] if still else three)
        )
        assert drawn["random", channel, 0.25, snr] == three
    assert drawn["jpeg", "awgn", 0.25, 0.0] == drawn["key-norm", None, None, None] == [None]
    assert drawn["random", None, None, None] == three


def test_only_the_gates_know_modes() -> None:
    grid = PatchGrid(selectors=("gates", "random"), alphas=(0.2, 1.0), snrs=(None,), modes=(None, "soft", "exact"))
    assert [place[:2] for place in places(grid, "up-to")] == [
        ("whole", 1.0), ("gates (up-to)", 0.2), ("gates (soft)", 0.2), ("gates", 0.2), ("random", 0.2),
        ("gates (up-to)", 1.0), ("gates (soft)", 1.0),
    ]  # fmt: skip
    assert [place[:2] for place in places(grid, "exact")][1:4] == [
        ("gates", 0.2),
        ("gates (soft)", 0.2),
        ("random", 0.2),
    ]


def test_files_go_over_white_noise_alone_at_every_share() -> None:
    grid = PatchGrid(
        selectors=(), digital=tuple(DIGITAL), alphas=(0.2, 1.0), snrs=(None, 3.0), channels=("erasure", "awgn")
    )
    found = [(cell.way, cell.alpha) for cell in grid.conditions("exact", 4) if cell.digital]
    assert found == [(way, alpha) for alpha in (0.2, 1.0) for way in DIGITAL]
    assert all(
        cell.link is not None and cell.link.channel.name == "awgn"
        for cell in grid.conditions("exact", 4)
        if cell.digital
    )


@given(
    way=st.sampled_from([*SELECTORS, "whole", *DIGITAL]), alpha=alphas, mode=st.sampled_from(sorted(MODES)),
    channel=st.sampled_from([*(find_channel(name) for name in sorted(CHANNELS)), find_channel("erasure", loss=0.3)]),
    rate=st.floats(0.01, 1.0), snr=snrs, seed=st.one_of(st.none(), st.integers(0, 2**40)),
)  # fmt: skip
def test_a_cell_is_read_as_it_was_kept(**given_values: Any) -> None:
    linked = given_values["snr"] is not None
    if not linked:
        given_values |= {"channel": None, "rate": None}
    cell = PatchCondition(digital=given_values["way"] in DIGITAL, **given_values)
    kept = json.loads(json.dumps(cell.to_dict(), allow_nan=False))
    again = read_patch_condition(kept)
    assert again.to_dict() == cell.to_dict() == kept
    assert (again.label, again.place, again.seed) == (cell.label, cell.place, cell.seed)
    assert (again.link is not None) == linked


def test_a_channel_is_called_by_what_decides_it() -> None:
    assert [channel_label(one) for one in (find_channel("awgn"), find_channel("erasure", loss=0.25))] == [
        "awgn",
        "erasure loss 0.25",
    ]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"alphas": (0.0,)}, r"alpha must lie in \(0, 1\]"),
        ({"alphas": (0.5, 1.01)}, r"alpha must lie in \(0, 1\]"),
        ({"alphas": (nan,)}, r"alpha must lie in \(0, 1\]"),
        ({"rates": (0.0,), "snrs": (None,)}, r"rate must lie in \(0, 1\]"),
        ({"rates": (1.5,)}, r"rate must lie in \(0, 1\]"),
        ({"snrs": (nan,)}, "snr must be a number of decibels"),
        ({"snrs": (-inf,)}, "snr must be a number of decibels"),
        ({"selectors": ("best",)}, "unknown selector 'best'"),
        ({"digital": ("png",)}, "unknown digital baseline 'png'"),
        ({"channels": ("wire",)}, "unknown channel 'wire'"),
        ({"modes": ("hard",)}, "unknown mode 'hard'"),
        ({"draws": 0}, "draws must be at least 1"),
        ({"alphas": ()}, "no cells"),
        ({"snrs": ()}, "no cells"),
        ({"digital": ("jpeg",), "snrs": (None,)}, "jpeg is sent at the capacity of white noise"),
        ({"digital": ("jpeg",), "channels": ("rayleigh",)}, "needs an SNR other than none, on the channel awgn"),
        ({"alphas": (0.1, 0.2, 0.1)}, "the alpha 0.1 is named twice"),
        ({"selectors": ("gates", "gates")}, "the selector gates is named twice"),
        ({"snrs": (None, 0.0, None)}, "the SNR None is named twice"),
        (
            {"channels": (find_channel("erasure", loss=0.1), find_channel("erasure"))},
            "the channel erasure loss 0.1 is named twice",
        ),
        ({"rates": (0.1, 0.1)}, "the rate 0.1 is named twice"),
    ],
)
def test_what_a_grid_refuses(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        PatchGrid(**wrong)


@pytest.mark.parametrize("snr", [None, inf, 0.0, -10.0])
def test_no_noise_and_zero_decibels_are_told_apart(snr: float | None) -> None:
    [whole] = PatchGrid(selectors=(), snrs=(snr,)).conditions("exact", 4)
    assert (whole.link is None) == (snr is None)
    assert whole.snr == snr and (whole.seed is None) == (snr in (None, inf))
