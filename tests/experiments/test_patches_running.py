"""A comparison from its cells to its folder: kept, taken up again, and run anew where anything changed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from picture_samples import measure, picture_set, trained

from sinkscope.errors import UserError
from sinkscope.experiments.patches import PatchGrid, compare_selectors, read_selections
from sinkscope.experiments.pictures import PictureAccuracy, measure_on
from sinkscope.experiments.points import PatchCell
from sinkscope.grids import GridProgress, Keeping

GRID = PatchGrid(selectors=("gates", "random"), digital=("resized",), alphas=(0.3,), snrs=(None, 0.0), draws=2)


def told(rows: list[PatchCell]) -> list[object]:
    return [(row.model, row.condition.to_dict(), row.outcome.numerators.tolist(), row.seconds) for row in rows]


def test_cells_are_kept_read_and_taken_over(tmp_path: Path) -> None:
    one = measure()
    out = tmp_path / "cells"
    seen: list[GridProgress] = []
    rows = compare_selectors([one], GRID, Keeping(out=out), seen.append)
    labels = [(row.condition.label, row.condition.snr, row.condition.seed) for row in rows]
    assert labels == [
        ("whole", None, None), ("gates", None, None), ("random", None, 0), ("random", None, 1),
        ("whole", 0.0, 0), ("whole", 0.0, 1), ("gates", 0.0, 0), ("gates", 0.0, 1),
        ("random", 0.0, 0), ("random", 0.0, 1), ("resized", 0.0, None),
    ]  # fmt: skip
    assert seen[-1].cells_done == seen[-1].cells == len(rows) and seen[-1].examples_done == len(rows) * one.n
    assert told(read_selections(out)) == told(rows)
    with pytest.raises(UserError, match="holds cells already"):
        compare_selectors([one], GRID, Keeping(out=out))
    assert told(compare_selectors([one], GRID, Keeping(out=out, resume=True))) == told(rows)
    versions = [
        set(json.loads(line)["settings"]["versions"]) for line in (out / "cells.jsonl").read_text().splitlines()
    ]
    plain = {"sinkscope", "torch", "transformers"}
    assert versions[0] == plain and versions[5] == plain | {"sionna"} and versions[-1] == plain | {"pillow"}


def test_another_batch_size_redraws_noise_alone(tmp_path: Path) -> None:
    one = measure()
    rows = compare_selectors([one], GRID, Keeping(out=tmp_path))
    other = compare_selectors([replace(one, batch_size=3)], GRID, Keeping(out=tmp_path, resume=True))
    anew = [row.condition.label for row, before in zip(other, rows, strict=True) if row.seconds != before.seconds]
    assert anew == ["whole", "whole", "gates", "gates", "random", "random"]


def test_other_weights_are_run_anew(tmp_path: Path) -> None:
    grid = PatchGrid(selectors=("gates",), alphas=(0.3,), snrs=(None,))
    one = measure()
    rows = compare_selectors([one], grid, Keeping(out=tmp_path))
    with torch.no_grad():
        one.trained.model.budget.all.add_(1)
    again = compare_selectors([replace(one)], grid, Keeping(out=tmp_path, resume=True))
    assert [row.seconds for row in again] != [row.seconds for row in rows]
    assert len(read_selections(tmp_path)) == 4


def test_every_cell_is_tried_before_the_first_is_run(tmp_path: Path) -> None:
    grid = PatchGrid(selectors=("gates", "cls-attention"), alphas=(0.3,), snrs=(None,))
    with pytest.raises(UserError, match=r"tiny, noise, test, cls-attention at 0\.3: this selector looks at attention"):
        compare_selectors([measure(network="plain")], grid, Keeping(out=tmp_path / "cells"))
    assert not (tmp_path / "cells").exists()
    two_channels = replace(picture_set(3), images=torch.zeros(3, 2, 20, 28, dtype=torch.uint8))
    one = PictureAccuracy(trained=trained(), data=two_channels, split="test")
    with pytest.raises(UserError, match="tiny, noise, test, whole at 1: the model takes images"):
        compare_selectors([one], grid)


def test_models_are_run_in_their_own_mode() -> None:
    data = picture_set(5)
    models = [trained(mode, f"model {mode}") for mode in ("exact", "up-to")]
    measures = [measure_on(one, data, split="test") for one in models]
    rows = compare_selectors(measures, PatchGrid(selectors=("gates",), alphas=(0.3,), snrs=(None,)))
    assert [(row.model, row.condition.label) for row in rows] == [
        ("model exact", "whole"), ("model exact", "gates"), ("model up-to", "whole"), ("model up-to", "gates (up-to)"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("stats", "sent", 1.5), ("stats", "rho", -1.0), ("stats", "whole", None), ("stats", "bits", "many"),
        ("measured", "numerators", [1.0]), ("condition", "alpha", 2.0), ("condition", "rate", "all"),
        ("condition", "channel", {"name": "wire"}), ("condition", "channel", {"name": "awgn", "loss": 0.1}),
        ("condition", "snr", "loud"), ("condition", "seed", 0.5), ("condition", "digital", 0),
        ("condition", "way", None),
    ],
)  # fmt: skip
def test_a_damaged_cell_is_refused(tmp_path: Path, part: str, name: str, value: object) -> None:
    compare_selectors([measure(3)], PatchGrid(selectors=(), snrs=(None,)), Keeping(out=tmp_path))
    file = tmp_path / "cells.jsonl"
    cell = json.loads(file.read_text())
    read_selections(tmp_path)
    parts = {**cell, "stats": cell["measured"]["stats"], "condition": cell["settings"]["condition"]}
    parts[part][name] = value
    file.write_text(json.dumps(cell) + "\n")
    with pytest.raises(UserError, match="line 1 is no cell of a comparison of selectors"):
        read_selections(tmp_path)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no cells of a comparison of selectors"):
        read_selections(tmp_path)
    (tmp_path / "cells.jsonl").write_text('{"settings": {"condition": null}, "measured": {}}\n')
    with pytest.raises(UserError, match="line 1 is no cell of a comparison of selectors"):
        read_selections(tmp_path)
