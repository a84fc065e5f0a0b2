"""Folders of cells that someone damaged, or whose model was written anew: one line, or run again; never a traceback."""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from sinkscope.errors import UserError
from sinkscope.evaluation import Examples, MeasureOptions, find_measure
from sinkscope.experiments import eviction, eviction_table, masking, masking_table
from sinkscope.families import Model, load_model
from sinkscope.grids import Keeping, Outcome, as_csv

JUNK: tuple[Any, ...] = (None, "x", [], {}, -1, nan, True, 1e300, 0)
EXAMPLES = Examples(n=3, seed=1, max_example_tokens=36)


@dataclass(frozen=True)
class Kind:
    """One of the commands that keep cells."""

    twin: str
    run: Callable[..., Sequence[Any]]
    """Of a loaded model; options are those of `Keeping`."""
    read: Callable[[Path], Sequence[Any]]
    tell: Callable[[Sequence[Any]], str]
    """Everything that is said of rows."""


def dropped(model: Model, **options: Any) -> Sequence[Any]:
    measure = find_measure("passkey", MeasureOptions(examples=EXAMPLES, cached=True))(model)
    grid = eviction.EvictionGrid(scorers=("key-norm", "random"), budgets=(0.5,), protect_first=1)
    return eviction.compress_caches([measure], grid, Keeping(**options))


def masked(model: Model, **options: Any) -> Sequence[Any]:
    measure = find_measure("copy", MeasureOptions(examples=EXAMPLES))(model)
    return masking.ablate([measure], masking.MaskingGrid(keys=(1,), controls=("random",)), Keeping(**options))


def told_of_dropped(rows: Sequence[Any]) -> str:
    made = eviction_table.records(rows)
    said = [one.to_dict() for one in eviction.contrasts(rows)], [str(one) for one in eviction.verdicts(rows)]
    return json.dumps([made, said], allow_nan=False) + "\n" + eviction_table.TABLES.markdown(made) + as_csv(made)


def told_of_masked(rows: Sequence[Any]) -> str:
    made = masking_table.records(rows)
    said = [one.to_dict() for one in masking.contrasts(rows)], [str(one) for one in masking.verdicts(rows)]
    return json.dumps([made, said], allow_nan=False) + "\n" + masking_table.TABLES.markdown(made) + as_csv(made)


KINDS = {
    "compress": Kind("twin-ar", dropped, eviction.read_evictions, told_of_dropped),
    "ablate": Kind("twin-dlm", masked, masking.read_maskings, told_of_masked),
}


@pytest.fixture(scope="module", params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> Kind:
    """Both commands."""
    return KINDS[request.param]


@pytest.fixture(scope="module")
def cells(kind: Kind, twin_folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Lines of a finished grid."""
    out = tmp_path_factory.mktemp("cells") / "grid"
    kind.run(load_model(twin_folders[kind.twin], device="cpu"), out=out)
    return (out / "cells.jsonl").read_text().splitlines()


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Of everything in a cell."""
    if place:
        yield place
    keys = list(value) if isinstance(value, dict) else range(min(len(value), 1)) if isinstance(value, list) else ()
    for key in keys:
        yield from places(value[key], (*place, key))


def damaged(line: str, place: tuple[Any, ...], junk: Any) -> str:
    cell = json.loads(line)
    parent = cell
    for key in place[:-1]:
        parent = parent[key]
    parent[place[-1]] = junk
    return json.dumps(cell)


def without(line: str, place: tuple[Any, ...]) -> str:
    cell = json.loads(line)
    parent = cell
    for key in place[:-1]:
        parent = parent[key]
    del parent[place[-1]]
    return json.dumps(cell)


def refusal(kind: Kind, folder: Path) -> list[str]:
    """What is said of the folder, if it is refused; nothing where all can be told of it."""
    try:
        kind.tell(kind.read(folder))
    except UserError as error:
        return [str(error)]
    return []


def test_whatever_is_damaged_is_told_in_one_line_or_does_no_harm(kind: Kind, cells: list[str], tmp_path: Path) -> None:
    found = list(places(json.loads(cells[1])))
    assert len(found) > 40
    lines = [damaged(cells[1], place, junk) for place in found for junk in JUNK]
    lines += [without(cells[1], place) for place in found]
    lines += ["null", "[]", "{}", '"x"', "[" * 100_000, '{"settings": null, "measured": null}', "\x00", "{"]
    refusals = []
    for line in lines:
        (tmp_path / "cells.jsonl").write_text("\n".join([cells[0], line, *cells[2:]]) + "\n")
        refusals += refusal(kind, tmp_path)
    assert len(refusals) > len(lines) / 2
    assert all("line 2 is no cell of" in one and "\n" not in one for one in refusals)


@pytest.mark.parametrize(
    ("place", "junk"),
    [
        ("numerators", [1.0]), ("numerators", ["1", "0", "1"]), ("numerators", [1.0, 0.0, nan]), ("seconds", 0),
        ("seconds", inf), ("unit", None), ("better", "higher"), ("batch_size", 1.5), ("batch_size", 0),
    ],
)  # fmt: skip
def test_what_can_not_have_been_measured_is_refused(
    kind: Kind, cells: list[str], tmp_path: Path, place: str, junk: Any
) -> None:
    (tmp_path / "cells.jsonl").write_text(
        "\n".join([*cells[:-1], damaged(cells[-1], ("measured", place), junk)]) + "\n"
    )
    with pytest.raises(UserError, match=f"line {len(cells)} is no cell of"):
        kind.read(tmp_path)


@pytest.mark.parametrize(
    ("place", "junk"),
    [
        ("kept", None), ("kept", 1.5), ("kept", -0.1), ("cache_bytes", "many"), ("tokens", 2.5), ("peak_memory", -1),
        ("peak_memory", "much"),
    ],
)  # fmt: skip
def test_weights_that_can_not_be_are_refused(
    twin_folders: dict[str, Path], tmp_path: Path, place: str, junk: Any
) -> None:
    out = tmp_path / "grid"
    dropped(load_model(twin_folders["twin-ar"], device="cpu"), out=out)
    lines = (out / "cells.jsonl").read_text().splitlines()
    (out / "cells.jsonl").write_text(
        "\n".join([damaged(lines[0], ("measured", "stats", place), junk), *lines[1:]]) + "\n"
    )
    with pytest.raises(UserError, match="line 1 is no cell of"):
        eviction.read_evictions(out)


def test_a_folder_in_place_of_the_file_is_told(kind: Kind, twin_folders: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "cells.jsonl").mkdir()
    model = load_model(twin_folders[kind.twin], device="cpu")
    with pytest.raises(UserError, match=r"cells.jsonl can't be read and written on \(Is a directory\)"):
        kind.run(model, out=tmp_path, resume=True)
    with pytest.raises(UserError, match="holds no cells of"):
        kind.read(tmp_path)


def test_cells_of_other_weights_are_run_again(kind: Kind, twin_folders: dict[str, Path], tmp_path: Path) -> None:
    folder, out = tmp_path / "model", tmp_path / "grid"
    shutil.copytree(twin_folders[kind.twin], folder)
    first = kind.run(load_model(folder, device="cpu"), out=out)
    same = kind.run(load_model(folder, device="cpu"), out=out, resume=True)
    assert [row.seconds for row in same] == [row.seconds for row in first]
    weights = load_file(folder / "model.safetensors")
    changed = {name: weight + 0.01 * torch.randn_like(weight) for name, weight in weights.items()}
    save_file(changed, folder / "model.safetensors", metadata={"format": "pt"})
    again = kind.run(load_model(folder, device="cpu"), out=out, resume=True)
    assert {row.seconds for row in again}.isdisjoint({row.seconds for row in first})
    assert len({row.experiment for row in (*first, *again)}) == 2
    both = kind.read(out)
    assert len(both) == 2 * len(first)
    titles = [line for line in kind.tell(both).splitlines() if line.startswith("### ")]
    assert len(titles) == 2 and titles[1] == f"{titles[0]} #2"


def test_scores_that_are_no_numbers_are_told_and_not_kept(
    twin_folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(twin_folders["twin-ar"], device="cpu")
    to_dict = Outcome.to_dict

    def overflown(self: Outcome) -> dict[str, Any]:
        return {**to_dict(self), "numerators": [nan, 0.0, nan]}

    monkeypatch.setattr(Outcome, "to_dict", overflown)
    with pytest.raises(UserError, match="the scores of 2 of 3 examples are nan, no number; compute in a wider dtype"):
        dropped(model, out=tmp_path / "grid")
    assert not (tmp_path / "grid" / "cells.jsonl").exists()


def test_a_file_of_somebody_else_is_left_alone(kind: Kind, twin_folders: dict[str, Path], tmp_path: Path) -> None:
    theirs = tmp_path / "cells.jsonl"
    theirs.write_text('{"my": "only data, one line"')
    with pytest.raises(UserError, match=r"cells\.jsonl"):
        kind.run(load_model(twin_folders[kind.twin], device="cpu"), out=tmp_path, resume=True)
    assert theirs.read_text() == '{"my": "only data, one line"'


def test_a_last_line_without_its_break_is_a_cell(
    kind: Kind, cells: list[str], twin_folders: dict[str, Path], tmp_path: Path
) -> None:
    whole = "\n".join(cells)
    (tmp_path / "cells.jsonl").write_text(whole)
    kind.run(load_model(twin_folders[kind.twin], device="cpu"), out=tmp_path, resume=True)
    assert (tmp_path / "cells.jsonl").read_text() == f"{whole}\n"
