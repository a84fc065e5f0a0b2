"""The figures and tables of the paper: which steps are shown, what is left out and why, the numbers of the tables."""

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from report_samples import POSITIONS, STEPS, causal, cell, head_mean, made, shown, with_maps

from sinkscope.errors import UserError
from sinkscope.report import figures
from sinkscope.report.figures.decoding import states
from sinkscope.report.figures.making import PAPER
from sinkscope.report.figures.paper import map_steps, tabular, tex, trace_command
from sinkscope.sinks import Excess

WANTED = [0, 2, 3, 4, 6]
"""Steps of `made`: its strongest key moves between 2 and 3, its first block ends with 3, its last step is 6."""


def inputs(*samples: xr.Dataset, ablations: tuple[figures.Ablation, ...] = ()) -> figures.Inputs:
    subjects = tuple(figures.Subject(f"model {number}", [one], one) for number, one in enumerate(samples))
    return figures.Inputs(subjects=subjects, ablations=ablations, rule=Excess(2.0))


@pytest.fixture
def ablations(tmp_path: Path) -> tuple[figures.Ablation, ...]:
    taken = {"keys": 1.0, "mass": 0.4, "sink_mass": 0.4, "cut_mass": 0.4, "mask_share": 0.0, "repeated_share": 0.0}
    right = {"plain": [1.0] * 9 + [0.0], "top-1": [1.0] * 4 + [0.0] * 6, "control": [1.0] * 7 + [0.0] * 3}
    lines = [
        cell(right["plain"]),
        cell(right["top-1"], keys=1, removed=taken),
        cell(right["control"], keys=1, control="equal-mass", removed={**taken, "mass": 0.1}),
        cell(right["top-1"], model="other_model"),
        cell(right["control"], model="other_model", keys=5),
    ]
    (tmp_path / "grid").mkdir()
    (tmp_path / "grid" / "cells.jsonl").write_text("".join(lines))
    return figures.read_ablations(tmp_path / "grid")


def test_the_steps_of_the_maps_are_those_of_the_published_ones() -> None:
    sample = made()
    tops = head_mean(sample).argmax(1)
    assert np.abs(np.diff(tops)).argmax() == 2
    assert map_steps(sample) == {"fig04": [2, 3], "fig06": [3, 4], "fig08": [0, 6]}
    still = sample.isel(step=slice(3))
    assert map_steps(still) == {"fig08": [0, 2]}
    later = sample.assign_coords(step=sample["step"] + 10)
    assert map_steps(later)["fig06"] == [13, 14]


def test_all_is_made_of_two_traces_and_a_grid(tmp_path: Path, ablations: tuple[figures.Ablation, ...]) -> None:
    given = inputs(with_maps(made(), steps=tuple(WANTED)), causal(), ablations=ablations)
    found = figures.make_figures(given, tmp_path / "paper", ending="svg", kinds=PAPER)
    assert not found.left_out
    numbers = [name.split("-")[0] for name in found.files]
    assert numbers == [f"fig{number:02}" for number in range(1, 11)] + ["table1", "table2"]
    assert {file.suffix for name, file in found.files.items() if name.startswith("fig")} == {".svg"}
    assert {file.suffix for name, file in found.files.items() if name.startswith("table")} == {".tex"}
    assert all(file.name == f"{name}{file.suffix}" for name, file in found.files.items())
    again = figures.make_figures(given, tmp_path / "paper", ending="svg", kinds=PAPER, overwrite=True)
    assert again.files == found.files


def test_what_was_not_recorded_is_told_with_the_command_that_records_it() -> None:
    sample = made()
    sample.attrs["sinkscope"]["decoding"] = {
        "kind": "denoising", "gen_length": 7, "block_length": 4, "steps": None, "confidence": "max-prob",
        "temperature": 0.0, "suppress": [], "defer": [3, 5], "seed": 0,
    }  # fmt: skip
    command = (
        "sinkscope trace model-a --prompts FILE.jsonl --gen-length 7 --block-length 4 --confidence max-prob "
        "--defer 3,5 --map-steps 0,2,3,4,6 --out FOLDER"
    )
    for name, steps in (("fig04-moving-sink", "2 and 3"), ("fig06-block-end", "3 and 4")):
        with pytest.raises(UserError, match=re.escape(f"no maps of steps {steps}: {command}")):
            PAPER[name].draw(inputs(sample))
    with pytest.raises(UserError, match="sinkscope ablate model-a --task TASK --strongest 1,5,10 --control"):
        PAPER["table1-masking"].draw(inputs(sample))
    with pytest.raises(UserError, match="sinkscope trace OTHER-MODEL --prompts FILE"):
        PAPER["fig09-other-scores"].draw(inputs(sample))
    with pytest.raises(UserError, match="one block: record with a --block-length below"):
        PAPER["fig06-block-end"].draw(inputs(sample.isel(step=slice(3))))
    with pytest.raises(UserError, match="an autoregressive model sees one query a step"):
        PAPER["fig08-first-and-last"].draw(inputs(causal()))
    with pytest.raises(UserError, match="no trace was given"):
        PAPER["table1-masking"].draw(figures.Inputs())
    assert trace_command(causal()) == "sinkscope trace model-b --prompts FILE.jsonl --out FOLDER"


def test_maps_are_of_the_steps_asked_for_and_the_others_are_named() -> None:
    sample = with_maps(made(), steps=tuple(WANTED))
    drawn = PAPER["fig08-first-and-last"].draw(inputs(sample, causal()))
    first, last, _ = drawn.axes
    head = [title.get_title("left").split("\n")[1] for title in (first, last)]
    layer = int(head[0].split("layer ")[1][0])
    assert head == [f"step 0, layer {layer}, head 2", f"step 6, layer {layer}, head 2"]
    np.testing.assert_array_equal(shown(last), sample["attention"].values[-1, layer, 0])
    assert "model 1 left out: an autoregressive model" in " ".join(drawn.get_supxlabel().split())


def test_the_table_of_masking_holds_scores_intervals_and_arrows(ablations: tuple[figures.Ablation, ...]) -> None:
    table = PAPER["table1-masking"].draw(inputs(made(), ablations=ablations))
    rows = [line.removesuffix(r" \\").split(" & ") for line in table.splitlines() if line.endswith(r"\\")]
    assert [[one.strip() for one in row[:2]] for row in rows] == [
        ["task", "masked keys"], ["copy, n = 10", "none"], ["", "top-1"], ["", "equal-mass for top-1"], ["", "top-5"],
    ]  # fmt: skip
    assert rows[0][2:] == ["twin-x", r"other\_model"]
    # Wilson's intervals of 9, 4 and 7 of 10.
    assert rows[1][2] == r"0.90 {\scriptsize(0.60 to 0.98)}"
    assert rows[2][2:] == [r"0.40 {\scriptsize(0.17 to 0.69)}", "--"]
    assert rows[3][2] == r"0.70$^{\downarrow}$ {\scriptsize(0.40 to 0.89)}"
    assert rows[4][2:] == ["--", r"0.70 {\scriptsize(0.40 to 0.89)}"]
    assert len({len(row) for row in rows}) == 1


def test_the_table_of_tokens_counts_where_the_strongest_key_stands() -> None:
    sample = made()
    canvas = sample["canvas"].values
    held = Counter(int(canvas[step, place]) for step, place in enumerate(head_mean(sample).argmax(1)))
    every = Counter(canvas.ravel().tolist())
    words = {0: r"\textvisiblespace{}the", 1: r"\textvisiblespace{}cat", 2: "sat", 3: r"\textbackslash{}n", 4: ".",
             5: "ing", 7: "[MASK]", 9: r"\textless{}\textbar{}end\textbar{}\textgreater{}"}  # fmt: skip
    table = PAPER["table2-tokens"].draw(inputs(sample))
    rows = [line.removesuffix(r" \\").split(" & ") for line in table.splitlines() if line.endswith(r"\\")][1:]
    assert {row[0]: (float(row[1]), float(row[2])) for row in rows} == {
        rf"\texttt{{{words[token]}}}": (round(count / STEPS, 3), round(every[token] / (STEPS * POSITIONS), 3))
        for token, count in held.most_common(5)
    }


def test_latex_shows_what_stands_there() -> None:
    assert tex("a_b & 5 %") == r"a\_b \& 5 \%"
    assert tex("\\n{}^~#$") == r"\textbackslash{}\textbackslash{}n\{\}\textasciicircum{}\textasciitilde{}\#\$"
    table = tabular("lr", [["a", "b"], ["1", "2"], None, ["3", "4"]], ["one\ntwo"])
    assert table.splitlines()[:2] == ["% one", "% two"]
    assert table.count(r"\midrule") == 2 and table.count(r" \\") == 3


def test_the_canvas_is_drawn_as_it_was() -> None:
    sample = made()
    found = states(sample)
    masked = sample["canvas"].values == 7
    assert (found[:, :4] == 0).all() and (found[:, 4:][~masked[:, 4:]] == 1).all()
    start, stop = sample["block_start"].values[:, None], sample["block_stop"].values[:, None]
    inside = (np.arange(POSITIONS) >= start) & (np.arange(POSITIONS) < stop)
    np.testing.assert_array_equal(found == 2, masked & inside)
    np.testing.assert_array_equal(found == 3, masked & ~inside)
    filled = sample.copy()
    filled.attrs = sample.attrs | {"prompt_length": POSITIONS}
    assert ((states(filled) == 0) == ~masked.any(0)).all()  # what was masked in a prompt is text once it is filled
    growing = causal()
    growing["canvas"][1, 7:] = -1
    assert np.isnan(states(growing)[1, 7:]).all() and set(states(growing)[1, :7]) == {0, 1}
    drawn = figures.FIGURES["decoding"].draw(inputs(sample, growing))
    np.testing.assert_array_equal(shown(drawn.axes[0]).filled(-1), found.T)
    [legend] = drawn.legends
    assert [text.get_text() for text in legend.get_texts()][:4] == [
        "prompt",
        "text",
        "mask of the block",
        "mask to come",
    ]
    with pytest.raises(UserError, match="canvas were not recorded"):
        figures.FIGURES["decoding"].draw(inputs(sample.drop_vars("canvas")))
