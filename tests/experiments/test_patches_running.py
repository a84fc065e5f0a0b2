"""A comparison from its cells to its folder: kept, taken up again, and run anew where anything changed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from grid_samples import measure, picture_set, trained

from sinkscope.errors import UserError
from sinkscope.evaluation.grids import Progress
from sinkscope.selection.grid import Grid, Measure, compare_selectors, measure_on, read_rows
from sinkscope.selection.grid.rows import Row

GRID = Grid(selectors=("gates", "random"), digital=("resized",), alphas=(0.3,), snrs=(None, 0.0), draws=2)


def told(rows: list[Row]) -> list[object]:
    return [(row.model, row.cell.to_dict(), row.outcome.numerators.tolist(), row.seconds) for row in rows]


def test_cells_are_kept_read_and_taken_over(tmp_path: Path) -> None:
    one = measure()
    out = tmp_path / "cells"
    seen: list[Progress] = []
    rows = compare_selectors([one], GRID, out=out, observer=seen.append)
    labels = [(row.cell.label, row.cell.snr, row.cell.seed) for row in rows]
    assert labels == [
        ("whole", None, None), ("gates", None, None), ("random", None, 0), ("random", None, 1),
        ("whole", 0.0, 0), ("whole", 0.0, 1), ("gates", 0.0, 0), ("gates", 0.0, 1),
        ("random", 0.0, 0), ("random", 0.0, 1), ("resized", 0.0, None),
    ]  # fmt: skip
    assert seen[-1].cells_done == seen[-1].cells == len(rows) and seen[-1].examples_done == len(rows) * one.n
    assert told(read_rows(out)) == told(rows)
    with pytest.raises(UserError, match="holds cells already"):
        compare_selectors([one], GRID, out=out)
    assert told(compare_selectors([one], GRID, out=out, resume=True)) == told(rows)
    versions = [
        set(json.loads(line)["settings"]["versions"]) for line in (out / "cells.jsonl").read_text().splitlines()
    ]
    plain = {"sinkscope", "torch", "transformers"}
    assert versions[0] == plain and versions[5] == plain | {"sionna"} and versions[-1] == plain | {"pillow"}


def test_another_batch_size_redraws_noise_alone(tmp_path: Path) -> None:
    one = measure()
    rows = compare_selectors([one], GRID, out=tmp_path)
    other = compare_selectors([replace(one, batch_size=3)], GRID, out=tmp_path, resume=True)
    anew = [row.cell.label for row, before in zip(other, rows, strict=True) if row.seconds != before.seconds]
    assert anew == ["whole", "whole", "gates", "gates", "random", "random"]


def test_other_weights_are_run_anew(tmp_path: Path) -> None:
    grid = Grid(selectors=("gates",), alphas=(0.3,), snrs=(None,))
    one = measure()
    rows = compare_selectors([one], grid, out=tmp_path)
    with torch.no_grad():
        one.trained.model.budget.all.add_(1)
    again = compare_selectors([replace(one)], grid, out=tmp_path, resume=True)
    assert [row.seconds for row in again] != [row.seconds for row in rows]
    assert len(read_rows(tmp_path)) == 4


def test_every_cell_is_tried_before_the_first_is_run(tmp_path: Path) -> None:
    grid = Grid(selectors=("gates", "cls-attention"), alphas=(0.3,), snrs=(None,))
    with pytest.raises(UserError, match=r"tiny, cls-attention at 0\.3: this selector looks at attention"):
        compare_selectors([measure(network="plain")], grid, out=tmp_path / "cells")
    assert not (tmp_path / "cells").exists()
    two_channels = replace(picture_set(3), images=torch.zeros(3, 2, 20, 28, dtype=torch.uint8))
    one = Measure(trained=trained(), data=two_channels, split="test")
    with pytest.raises(UserError, match="tiny, whole at 1: the model takes images"):
        compare_selectors([one], grid)


def test_models_are_run_in_their_own_mode() -> None:
    data = picture_set(5)
    models = [trained(mode, f"model {mode}") for mode in ("exact", "up-to")]
    measures = [measure_on(one, data, split="test") for one in models]
    rows = compare_selectors(measures, Grid(selectors=("gates",), alphas=(0.3,), snrs=(None,)))
    assert [(row.model, row.cell.label) for row in rows] == [
        ("model exact", "whole"), ("model exact", "gates"), ("model up-to", "whole"), ("model up-to", "gates (up-to)"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("measured", "sent", 1.5), ("measured", "rho", -1.0), ("measured", "whole", None), ("measured", "bits", "many"),
        ("measured", "numerators", [1.0]), ("selection", "alpha", 2.0), ("selection", "rate", "all"),
        ("selection", "channel", {"name": "wire"}), ("selection", "channel", {"name": "awgn", "loss": 0.1}),
        ("selection", "snr", "loud"), ("selection", "seed", 0.5), ("selection", "digital", 0),
        ("selection", "way", None),
    ],
)  # fmt: skip
def test_a_damaged_cell_is_refused(tmp_path: Path, part: str, name: str, value: object) -> None:
    compare_selectors([measure(3)], Grid(selectors=(), snrs=(None,)), out=tmp_path)
    file = tmp_path / "cells.jsonl"
    cell = json.loads(file.read_text())
    read_rows(tmp_path)
    {"measured": cell["measured"], "selection": cell["settings"]["selection"]}[part][name] = value
    file.write_text(json.dumps(cell) + "\n")
    with pytest.raises(UserError, match="line 1 is no cell of a comparison of selectors"):
        read_rows(tmp_path)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no cells of a comparison of selectors"):
        read_rows(tmp_path)
    (tmp_path / "cells.jsonl").write_text('{"settings": {"selection": null}, "measured": {}}\n')
    with pytest.raises(UserError, match="line 1 is no cell of a comparison of selectors"):
        read_rows(tmp_path)
