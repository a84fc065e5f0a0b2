"""Tables for duckdb and polars hold what `--json` says, in the types that it has."""

import json
from collections.abc import Callable
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_cells import removal
from report_samples import cell

from sinkscope.cli import options
from sinkscope.cli.main import run
from sinkscope.decoding import Denoising
from sinkscope.experiments import masking_table
from sinkscope.experiments.masking import read_maskings
from sinkscope.families import Model
from sinkscope.report.parquet import write_cells, write_sinks
from sinkscope.sinks import Excess, summarise, table_rows
from sinkscope.trace import Recording, open_trace, record

SHAPES = ("overview", "heads", "tokens", "distances", "groups")
"""Tables without labels, with two, with texts, with labels of both kinds, and with gaps."""
HERE = "sinkscope.report.parquet"
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def traces(tiny: Callable[[str], Model], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Of three and of two samples, some of other lengths."""
    folder = tmp_path_factory.mktemp("traces")
    model, settings = tiny("llada-tiny"), Denoising(gen_length=4, block_length=2, steps=4)
    prompts = [[5, 9, 2, 8], [7, 3], [1, 2, 3]]
    for name, some in (("one", prompts), ("two", prompts[1:])):
        record(model, some, settings, out=folder / name, recording=Recording(norms=True, by_group="heads"))
    return [folder / "one", folder / "two"]


def duck_rows(sql: str) -> Rows:
    found = duckdb.connect().execute(sql)
    names = [one[0] for one in found.description or ()]
    return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def json_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    capsys.readouterr()
    assert run([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def from_json(table: dict[str, Any]) -> Rows:
    """Rows of a table of `sinks --json`, put together by hand."""
    labels = table["coords"]
    rows: Rows = [{}]
    for dim, values in labels.items():
        rows = [{**row, dim: value} for row in rows for value in values]
    for row in rows:
        for name, one in table["data"].items():
            value = one["values"]
            for dim in one["dims"]:
                value = value[labels[dim].index(row[dim])]
            row[name] = value
    return rows


def test_every_table_of_sinks_is_that_of_json(
    traces: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = json_of(["sinks", *map(str, traces), "--rule", "top-k:2", "--table", ",".join(SHAPES)], capsys)["traces"]
    for name in SHAPES:
        file = tmp_path / f"{name}.parquet"
        line = ["export", "--parquet", *map(str, traces), "--rule", "top-k:2", "--table", name, "--out", str(file)]
        wanted = [{"trace": one["trace"], **row} for one in told for row in from_json(one["tables"][name])]
        assert json_of(line, capsys)["rows"] == len(wanted)
        assert duck_rows(f"from '{file}'") == wanted == polars.read_parquet(file).to_dicts()


def test_samples_are_row_groups(traces: list[Path], tmp_path: Path) -> None:
    file, rule = tmp_path / "heads.parquet", Excess(epsilon=1.5)
    rows = write_sinks(traces, file, rule, "masked", table="layers", by_sample=True)
    wanted = []
    for path in traces:
        trace = open_trace(path)
        for one in trace.ids:
            table = summarise([trace[one]], rule, "masked", tables=["layers"]).tables["layers"]
            wanted.append([{"trace": str(path), "sample": one, **row} for row in table_rows(table)])
    assert duck_rows(f"from '{file}'") == [*chain(*wanted)] and rows == sum(map(len, wanted))
    opened = pq.ParquetFile(file)
    assert [opened.read_row_group(n).to_pylist() for n in range(opened.num_row_groups)] == wanted
    stated = json.loads(opened.metadata.metadata[b"sinkscope"])
    assert stated["rule"] == rule.settings() and (stated["table"], stated["group"]) == ("layers", "masked")
    assert stated["units"]["top_received"] == "share of attention"
    assert opened.schema_arrow.field("top_received").metadata[b"unit"] == b"share of attention"
    assert opened.schema_arrow.field("layer").type == pa.int64()


def test_a_sample_is_written_before_the_next_is_read(
    traces: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the third sample can't be read, two row groups were on their way."""
    written: list[int] = []
    monkeypatch.setattr(f"{HERE}.write_whole", lambda _, parts: written.extend(map(len, parts)))
    seen: list[int] = []

    def look(*given: Any, **more: Any) -> Any:
        seen.append(len(written))
        return summarise(*given, **more)

    monkeypatch.setattr(f"{HERE}.summarise", look)
    write_sinks(traces[:1], tmp_path / "x", Excess(), by_sample=True)
    assert seen == [0, 1, 2] and min(written) > 0


def test_cells_are_those_of_the_table(tmp_path: Path) -> None:
    grids = [tmp_path / "one", tmp_path / "two"]
    kept = (
        cell([1.0, 0.0, 1.0]) + cell([0.0, 0.0, 1.0], keys=5, masking={"layers": [0, 2]}),
        cell([1.0, 1.0]) + cell([1.0, 0.0], keys=7, removed=removal(3.5)),
    )
    for folder, lines in zip(grids, kept, strict=True):
        folder.mkdir()
        (folder / "cells.jsonl").write_text(lines)
    assert write_cells(grids, tmp_path / "cells.parquet") == 4
    wanted = [
        {"folder": str(folder), **one} for folder in grids for one in masking_table.records(read_maskings(folder))
    ]
    assert wanted[1]["layers"] == [0, 2] and wanted[3]["keys_cut"] == 3.5
    assert duck_rows(f"from '{tmp_path / 'cells.parquet'}'") == wanted
    found = polars.read_parquet(tmp_path / "cells.parquet")
    assert found.to_dicts() == wanted
    assert found.schema["n"] == polars.Int64 and found.schema["difference_p"] == polars.Float64
    assert found.schema["mask_seed"] == polars.Int64 and found.schema["unsure"] == polars.String
    file = tmp_path / "cells.parquet"
    assert duck_rows(f"select max(score) as best from '{file}' where masked = 'sinks'") == [{"best": 0.5}]


def test_mistakes_are_one_line(
    traces: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    grid, out = tmp_path / "grid", ["--out", str(tmp_path / "x.parquet")]
    grid.mkdir()
    (grid / "cells.jsonl").write_text(cell([1.0, 0.0]))
    one = str(traces[0])
    for line, words in [
        ([one, *out], "which format? --parquet"),
        ([one, str(grid), "--parquet", *out], "name one kind"),
        ([str(grid), "--parquet", "--table", "heads", *out], "leave out --table"),
        ([one, "--parquet", "--table", "kinds", *out], "has no table kinds"),
        ([one, "--parquet", "--group", "kept", *out], "kept"),
        ([one, "--parquet", "--out", str(grid / "cells.jsonl")], "exists already"),
    ]:
        assert run(["export", *line]) == 2
        [said] = capsys.readouterr().err.splitlines()
        assert words in said
    monkeypatch.setattr(options, "find_spec", lambda name: None if name == "pyarrow" else find_spec(name))
    assert run(["export", one, "--parquet", *out]) == 2
    assert "pip install 'sinkscope[parquet]'" in capsys.readouterr().err
    assert not (tmp_path / "x.parquet").exists()
