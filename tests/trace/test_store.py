"""Writing traces: round trips, cuts at any step, resuming, and what may not be overwritten."""

import shutil
import tempfile
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import xarray
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_samples import (
    ATTRS,
    COUNTS,
    GROUPS,
    SAMPLES,
    STATISTICS,
    STEPS,
    check_steps,
    file_bytes,
    row,
    static_rows,
    step_rows,
    write_all,
    write_sample,
)

from sinkscope.errors import UserError
from sinkscope.trace.attributes import first_difference
from sinkscope.trace.groups import sample_folder, write_group
from sinkscope.trace.layout import Counts, Maps, Statistics, plan_layout
from sinkscope.trace.reading import open_trace
from sinkscope.trace.store import TraceStore, check_output

FEW = settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
LAYOUT = plan_layout(COUNTS, STATISTICS)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("unbroken") / "trace.zarr"
    write_all(path)
    return path


counts = st.builds(
    Counts,
    max_steps=st.integers(1, 35),
    layers=st.integers(1, 3),
    heads=st.integers(1, 4),
    kv_heads=st.integers(1, 2),
    positions=st.integers(1, 11),
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Counts, Statistics, int, int]:
    sizes = draw(counts)
    groups = draw(st.sampled_from([(), ("prompt",), GROUPS]))
    by_group: Literal["mean", "heads"] | None = draw(st.sampled_from(["mean", "heads", None])) if groups else None
    flag = st.booleans()
    some_steps = st.sets(st.integers(0, sizes.max_steps - 1), min_size=1, max_size=3).map(tuple)
    maps = st.builds(Maps, steps=some_steps, layers=st.just((sizes.layers - 1,)), heads=st.just((0,)))
    statistics = Statistics(
        precision=draw(st.sampled_from(["rounded", "float32"])),
        groups=groups,
        by_group=by_group,
        norms=draw(flag),
        entropy=draw(flag),
        unconditional=draw(flag),
        final=draw(flag),
        maps=draw(st.none() | maps),
    )
    return sizes, statistics, draw(st.integers(0, sizes.max_steps)), draw(st.integers(1, sizes.positions))


@FEW
@given(cases())
def test_what_goes_in_comes_out_by_any_reader(case: tuple[Counts, Statistics, int, int]) -> None:
    sizes, statistics, steps, positions = case
    layout = plan_layout(sizes, statistics)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.zarr"
        with TraceStore.create(path, ATTRS) as store:
            writer = store.sample(0, "only", layout, {"prompt_length": 1})
            for step in range(steps):
                writer.append(step_rows(layout, 0, step))
            static = {name: values[..., :positions] for name, values in static_rows(layout, 0).items()}
            writer.finish(static, {"text": None}, positions=positions)
        trace = open_trace(path)
        ours = trace["only"].load()
        plain = xarray.open_zarr(path, group="samples/000000", consolidated=False, chunks=None).load()
    assert ours.attrs.pop("sinkscope") == trace.attrs
    xarray.testing.assert_identical(ours, plain)
    assert ours.attrs == {"id": "only", "prompt_length": 1, "steps": steps, "complete": True, "text": None}
    assert ours.sizes["step"] == steps
    cut = {"position": slice(positions), "query": slice(positions)}
    for variable in (*layout.stepwise, *layout.mapped):
        kept = [step for step in layout.map_steps if step < steps] if variable in layout.mapped else range(steps)
        rows = np.array([row(variable, 0, step) for step in kept]).reshape(len(kept), *variable.shape[1:])
        wanted = xarray.DataArray(rows.astype(variable.dtype), dims=variable.dims)
        wanted = wanted.isel({dim: part for dim, part in cut.items() if dim in variable.dims})
        assert ours[variable.name].dims == variable.dims
        assert ours[variable.name].dtype == variable.dtype
        np.testing.assert_array_equal(ours[variable.name].values, wanted.values)
    for name, values in static.items():
        np.testing.assert_array_equal(ours[name].values, values.astype(ours[name].dtype))
    for axis in layout.coordinates:
        assert ours[axis.name].values.tolist() == list(axis.values)[: ours.sizes[axis.name]]


def test_steps_show_only_when_their_chunk_is_on_disk(tmp_path: Path) -> None:
    with TraceStore.create(tmp_path / "t", ATTRS) as store:
        writer = store.sample(0, "id-0", LAYOUT, {})
        seen = []
        for step in range(STEPS):
            writer.append(step_rows(LAYOUT, 0, step))
            seen.append(check_steps(open_trace(tmp_path / "t")[0], LAYOUT, 0))
            assert writer.steps == seen[-1]
    chunk = LAYOUT.chunk_steps
    assert seen == [(step + 1) // chunk * chunk for step in range(STEPS)]
    assert seen[-1] > 0


def test_rows_may_be_short_where_an_autoregressive_model_has_no_keys_yet(tmp_path: Path) -> None:
    layout = plan_layout(
        COUNTS, Statistics(groups=GROUPS, by_group="mean", maps=Maps(steps=(0,), layers=(0,), heads=(0,)))
    )
    with TraceStore.create(tmp_path / "t", ATTRS) as store:
        writer = store.sample(0, "a", layout, {})
        for step in range(3):
            rows = step_rows(layout, 0, step)
            writer.append({**rows, **{name: rows[name][..., : 3 + step] for name in ("received", "received_by_group")}})
        writer.finish(static_rows(layout, 0), {})
    sample = open_trace(tmp_path / "t")["a"]
    np.testing.assert_array_equal(np.isnan(sample["received"].values).sum(axis=(1, 2, 3)), [4 * 6, 3 * 6, 2 * 6])
    np.testing.assert_array_equal((sample["received_by_group"].values == 0).sum(axis=(1, 2, 3)), [4 * 6, 3 * 6, 2 * 6])


def test_several_samples_can_be_written_at_once(tmp_path: Path, unbroken: Path) -> None:
    with TraceStore.create(tmp_path / "t", ATTRS) as store:
        writers = [store.sample(n, f"id-{n}", LAYOUT, {"prompt_length": 2 + n}) for n in range(SAMPLES)]
        for step in range(STEPS):
            for number, writer in enumerate(writers):
                writer.append(step_rows(LAYOUT, number, step))
        for number, writer in enumerate(writers):
            writer.finish(static_rows(LAYOUT, number), {"tokens": {"5": "five"}, "text": f"text {number}"})
    assert file_bytes(tmp_path / "t") == file_bytes(unbroken)


@FEW
@given(sample=st.integers(0, SAMPLES - 1), steps=st.integers(0, STEPS))
def test_resuming_after_a_cut_at_any_step_gives_the_same_bytes(unbroken: Path, sample: int, steps: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.zarr"
        with TraceStore.create(path, ATTRS) as store:
            for number in range(sample):
                write_sample(store, LAYOUT, number, STEPS)
            writer = store.sample(sample, f"id-{sample}", LAYOUT, {"prompt_length": 2 + sample})
            for step in range(steps):
                writer.append(step_rows(LAYOUT, sample, step))
        assert open_trace(path).complete_ids == tuple(f"id-{number}" for number in range(sample))
        write_all(path)
        assert file_bytes(path) == file_bytes(unbroken)


@pytest.mark.parametrize("spread", [1, 2, 4])
def test_a_sample_of_a_large_model_stays_below_its_share_of_60_megabytes(tmp_path: Path, spread: int) -> None:
    layout = plan_layout(
        Counts(max_steps=128, layers=32, heads=32, kv_heads=8, positions=165),
        Statistics(groups=("prompt", "committed", "block-committed", "block-masked", "later"), by_group="mean"),
    )
    random = np.random.default_rng()

    def softmax(*shape: int) -> np.ndarray[Any, Any]:
        logits = random.normal(0, spread, shape)
        return np.asarray(np.exp(logits) / np.exp(logits).sum(-1, keepdims=True))

    with TraceStore.create(tmp_path / "t", ATTRS) as store:
        writer = store.sample(0, "a", layout, {})
        for step in range(16):
            rows = {**step_rows(layout, 0, step), "received": softmax(32, 32, 165)}
            writer.append({**rows, "received_by_group": softmax(32, 5, 165)})
        writer.finish(static_rows(layout, 0), {})
    assert sum(map(len, file_bytes(tmp_path / "t").values())) < 60e6 / 8


def test_create_begins_only_where_nothing_stands(tmp_path: Path, unbroken: Path) -> None:
    with TraceStore.create(tmp_path / "missing" / "parent" / "t", ATTRS) as store:
        assert store.complete_ids() == frozenset()
    (tmp_path / "empty").mkdir()
    TraceStore.create(tmp_path / "empty", ATTRS).close()
    assert [file.name for file in (tmp_path / "empty").glob(".*")] == []
    with pytest.raises(UserError, match="exists: go on with it"):
        TraceStore.create(unbroken, ATTRS)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_that_is_no_trace_is_never_touched(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "zarr.json").write_text('{"attributes": {"other": 1}}')
    (tmp_path / "photos" / "samples").mkdir()
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match=r"exists and is not a sinkscope trace: nothing was removed"):
        TraceStore.create(tmp_path / "photos", ATTRS, overwrite=overwrite)
    with pytest.raises(UserError, match=r"can't write a trace at .*Not a directory"):
        TraceStore.create(tmp_path / "file", ATTRS, overwrite=overwrite)
    assert sorted(file.name for file in tmp_path.rglob("*")) == ["file", "photos", "samples", "zarr.json"]


def test_overwrite_replaces_a_trace_and_leaves_other_files(tmp_path: Path, unbroken: Path) -> None:
    shutil.copytree(unbroken, tmp_path / "t")
    (tmp_path / "t" / "report.html").write_text("mine")
    with TraceStore.create(tmp_path / "t", {"model": {"name": "other"}}, overwrite=True) as store:
        write_sample(store, LAYOUT, 1, 3)
    trace = open_trace(tmp_path / "t")
    assert (trace.ids, trace.attrs["model"]) == (("id-1",), {"name": "other"})
    assert (tmp_path / "t" / "report.html").read_text() == "mine"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"decoding": {"steps": 64, "threshold": None}}, "decoding.steps: the trace has 32, asked 64"),
        ({"model": {"name": "tiny"}}, "model.layers: the trace has 2, asked null"),
        ({"seed": 3}, "seed: the trace has null, asked 3"),
        ({"decoding": {"steps": 32, "threshold": 0.9}}, "decoding.threshold: the trace has null, asked 0.9"),
    ],
)
def test_resume_names_the_first_setting_that_differs(unbroken: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"can't resume .* with other settings: {message}"):
        TraceStore.resume(unbroken, {**ATTRS, **change})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(2, 9) | st.text(max_size=3) | st.just(float("nan")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(json_values, json_values)
def test_equal_settings_never_differ_and_others_do(one: object, other: object) -> None:
    assert first_difference(one, one) is None
    if first_difference(one, other) is None:
        assert without_null(one) == without_null(other)


def without_null(value: object) -> object:
    """A field that is null is as good as one that is not there; NaN equals itself."""
    if isinstance(value, dict):
        pairs = {key: without_null(item) for key, item in value.items() if item is not None}
        return {key: item for key, item in pairs.items() if item != {}} or None
    return repr(value)


def test_resume_needs_a_trace_of_this_format(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a sinkscope trace, so there is nothing to resume"):
        TraceStore.resume(tmp_path, ATTRS)
    write_group(tmp_path / "t", {"sinkscope": {"format_version": 1}})
    with pytest.raises(UserError, match="has format_version 1, this sinkscope knows 2"):
        TraceStore.resume(tmp_path / "t", ATTRS)


@pytest.mark.parametrize("torn", [True, False])
def test_samples_without_the_description_of_their_run_are_told_of(tmp_path: Path, unbroken: Path, torn: bool) -> None:
    path = tmp_path / "t"
    shutil.copytree(unbroken, path)
    described = (path / "zarr.json").read_text()
    (path / "zarr.json").write_text(described[:-9]) if torn else (path / "zarr.json").unlink()
    lost = r"t holds samples, but .*zarr\.json, which describes their run, is missing or damaged: restore the file"
    for ask in (lambda: TraceStore.resume(path, ATTRS), lambda: check_output(path, resume=True, overwrite=False)):
        with pytest.raises(UserError, match=f"{lost} from a copy to go on, or record to another --out"):
            ask()
    with pytest.raises(UserError, match=lost):
        open_trace(path)
    (path / "zarr.json").write_text(described)
    with TraceStore.resume(path, ATTRS) as store:
        assert store.complete_ids() == {"id-0", "id-1"}


def test_complete_samples_are_not_written_again(tmp_path: Path, unbroken: Path) -> None:
    shutil.copytree(unbroken, tmp_path / "t")
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "t" / "samples").rglob("*") if file.is_file()}
    (sample_folder(tmp_path / "t", 1) / "zarr.json").write_text("{ damaged")
    with TraceStore.resume(tmp_path / "t", ATTRS) as store:
        assert store.complete_ids() == {"id-0"}
        with pytest.raises(ValueError, match=r"sample 0 .*is complete already"):
            store.sample(0, "id-0", LAYOUT, {})
        with pytest.raises(UserError, match=r"sample 0 of .* has the id 'id-0', asked 'x': resume with the prompts"):
            store.sample(0, "x", LAYOUT, {})
    write_all(tmp_path / "t")
    assert file_bytes(tmp_path / "t") == file_bytes(unbroken)
    for file, changed in before.items():
        if "000001" not in file.parts and file.parent.name != "samples":
            assert file.stat().st_mtime_ns == changed


def test_a_step_that_does_not_fit_the_layout_is_refused(tmp_path: Path) -> None:
    rows = step_rows(LAYOUT, 0, 0)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({name: rows[name] for name in rows if name != "canvas"}, r"missing \['canvas'\], surplus \[\]"),
        ({**rows, "extra": 1}, r"missing \[\], surplus \['extra'\]"),
        ({**rows, "received": rows["received"].T}, r"received must have the shape \(2, 3, 7\)"),
        ({**rows, "received": rows["received"][:1]}, r"got \(1, 3, 7\)"),
        ({**rows, "canvas": np.zeros(8, int)}, r"canvas must have the shape \(7,\)"),
        ({**rows, "canvas": np.zeros(7)}, "canvas must hold int32, got float64"),
        ({**rows, "attention": np.zeros((1, 2, 7, 7))}, r"surplus \['attention'\]"),
    ]
    with TraceStore.create(tmp_path / "t", ATTRS) as store:
        writer = store.sample(0, "a", LAYOUT, {})
        for step, message in wrong:
            with pytest.raises(ValueError, match=message):
                writer.append(step)
        for number in range(COUNTS.max_steps):
            writer.append(step_rows(LAYOUT, 0, number))
        with pytest.raises(ValueError, match="laid out for 41 steps"):
            writer.append(rows)
        with pytest.raises(ValueError, match="laid out for 7 positions, asked to keep 8"):
            writer.finish(static_rows(LAYOUT, 0), {}, positions=8)
        with pytest.raises(ValueError, match=r"sequence must have the shape \(5,\)"):
            writer.finish(static_rows(LAYOUT, 0), {}, positions=5)
        with pytest.raises(ValueError, match=r"missing \['final_received'\]"):
            writer.finish({"sequence": np.zeros(7, int)}, {})
        writer.finish(static_rows(LAYOUT, 0), {})
    assert check_steps(open_trace(tmp_path / "t")["a"], LAYOUT, 0) == COUNTS.max_steps


def test_a_finished_trace_is_a_plain_zarr_hierarchy(unbroken: Path) -> None:
    root = zarr.open_group(unbroken, mode="r")
    assert [name for name, _ in root.groups()] == ["samples"]
    assert sorted(name for name, _ in zarr.open_group(unbroken / "samples", mode="r").groups()) == [
        "000000",
        "000001",
    ]
    attributes: Any = root.attrs["sinkscope"]
    assert attributes["format_version"] == 2
    assert xarray.open_zarr(unbroken / "samples" / "000001", chunks=None).sizes["step"] == STEPS
