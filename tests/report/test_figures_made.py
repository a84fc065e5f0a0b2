"""Traces opened for drawing, and all figures that they allow, written into a folder."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from report_samples import edited, log_row, shown

from sinkscope.decoding import Decoding, Denoising
from sinkscope.errors import UserError
from sinkscope.families import Model, load_model
from sinkscope.report import figures
from sinkscope.report.figures.making import find_figure
from sinkscope.sinks import Excess
from sinkscope.trace import Maps, Prompt, Recording, open_trace, record

TRACED = {
    "attention-maps", "epsilon", "groups", "heat-map", "layer-heads", "lifetimes", "scores", "tokens", "top-position",
}  # fmt: skip
NORMED = {"key-norms", "key-norm-heads", "key-norm-steps"}
"""Of traces with key norms."""
DROPPED = {"compression", "needle", "threshold"}
"""Of comparisons of compressed caches."""
OTHERS = {"masks", "sink-kinds", "lab"}
"""Of traces with kinds of sinks, and of a laboratory."""


@pytest.fixture(scope="module")
def traces(tiny: Callable[[str], Model], causal_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two recorded traces: llada.zarr with samples q0 and q1 and maps, causal.zarr with q1 and q2."""
    root = tmp_path_factory.mktemp("traces")
    prompts = [Prompt("q0", [5, 9, 2, 8]), Prompt("q1", [7, 3, 11]), Prompt("q2", [1, 2])]
    settings = Denoising(gen_length=8, block_length=4, steps=8)
    maps = Recording(maps=Maps(steps=(2, 3), layers=(1,), heads=(0, 3)))
    record(tiny("llada-tiny"), prompts[:2], settings, out=root / "llada.zarr", recording=maps)
    causal = load_model(causal_folder, dtype="float32", device="cpu")
    record(causal, prompts[1:], Decoding(max_new_tokens=5), out=root / "causal.zarr")
    return root


def test_all_that_the_inputs_allow_is_made(traces: Path, tmp_path: Path) -> None:
    subjects, notes = figures.open_subjects([traces / "llada.zarr"], Excess(2.0), "all")
    inputs = figures.Inputs(
        subjects=subjects, rule=Excess(2.0), trainings=(figures.Training(name="twin", rows=(log_row(1),)),)
    )
    seen: list[str] = []
    made = figures.make_figures(inputs, tmp_path / "a" / "b", observer=seen.append)
    assert made.files == {name: tmp_path / "a" / "b" / f"{name}.svg" for name in sorted(TRACED | {"training"})}
    assert {file.name for file in (tmp_path / "a" / "b").iterdir()} == {f"{name}.svg" for name in made.files}
    assert made.left_out.pop("ablation") == "no ablation was given (--ablation FOLDER)"
    assert set(made.left_out) == NORMED | DROPPED | OTHERS
    assert all("no key norms" in made.left_out[name] for name in NORMED)
    assert "--compression FOLDER" in made.left_out["compression"]
    assert "--task needle" in made.left_out["needle"]
    assert seen == sorted(figures.FIGURES)
    assert notes == []
    for file in made.files.values():
        assert b"</svg>" in file.read_bytes()
        assert b"queries:" in file.read_bytes() and b"rule:" in file.read_bytes()


def test_two_traces_are_compared(traces: Path, tmp_path: Path) -> None:
    subjects, _ = figures.open_subjects([traces / "llada.zarr", traces / "causal.zarr"], Excess(2.0), "all")
    assert [one.label for one in subjects] == ["llada-tiny", "causal"]
    assert [one.sample.attrs["id"] for one in subjects] == ["q1", "q1"]  # what both hold
    made = figures.make_figures(
        figures.Inputs(subjects=subjects, rule=Excess(2.0)), tmp_path, only=["heat-map", "tokens"]
    )
    assert list(made.files) == ["heat-map", "tokens"]
    text = (tmp_path / "heat-map.svg").read_text()
    assert "llada-tiny: q1" in text and "causal: q1" in text


def test_recorded_numbers_reach_the_picture(traces: Path) -> None:
    sample = open_trace(traces / "llada.zarr")["q1"]
    ax = figures.heat_map(sample, Excess(2.0))
    expected = 11 * sample["received"].values.astype(np.float64).mean((1, 2))
    np.testing.assert_allclose(shown(ax), expected.T, rtol=1e-12)


def test_samples_are_chosen_by_id(traces: Path) -> None:
    both = [traces / "llada.zarr", traces / "causal.zarr"]
    subjects, _ = figures.open_subjects(both, Excess(2.0), "all", ["q2", "q0"])
    assert [one.sample.attrs["id"] for one in subjects] == ["q0", "q2"]
    assert [len(list(one.samples)) for one in subjects] == [1, 1]
    with pytest.raises(UserError, match="no trace has a sample with the id 'q7': the first has 'q0', 'q1'"):
        figures.open_subjects(both, Excess(2.0), "all", ["q7"])
    with pytest.raises(UserError, match=r"causal.zarr has none of the samples q0"):
        figures.open_subjects(both, Excess(2.0), "all", ["q0"])


def test_the_same_model_twice_is_told_apart(traces: Path, tmp_path: Path) -> None:
    other = edited(traces / "llada.zarr", tmp_path / "other.zarr")
    subjects, _ = figures.open_subjects([traces / "llada.zarr", other], Excess(2.0), "all")
    assert [one.label for one in subjects] == ["llada-tiny (llada.zarr)", "llada-tiny (other.zarr)"]
    (tmp_path / "deeper").mkdir()
    namesake = edited(traces / "llada.zarr", tmp_path / "deeper" / "other.zarr")
    subjects, _ = figures.open_subjects([other, namesake], Excess(2.0), "all")
    assert len({one.label for one in subjects}) == 2
    with pytest.raises(UserError, match="named twice"):
        figures.open_subjects([other, other], Excess(2.0), "all")


def test_an_unfinished_sample_is_drawn_and_noted(traces: Path, tmp_path: Path) -> None:
    path = edited(traces / "llada.zarr", tmp_path / "u.zarr", complete=False)
    subjects, notes = figures.open_subjects([path], Excess(2.0), "all")
    assert notes == [f"{path}: sample 'q0' is unfinished, its first 8 steps are drawn"]
    made = figures.make_figures(
        figures.Inputs(subjects=subjects, rule=Excess(2.0)), tmp_path / "out", only=["heat-map"]
    )
    assert "unfinished, 8 steps so far" in made.files["heat-map"].read_text()


def test_a_trace_without_steps_is_refused(traces: Path, tmp_path: Path) -> None:
    empty = tmp_path / "e.zarr"
    shutil.copytree(traces / "llada.zarr", empty)
    shutil.rmtree(empty / "samples")
    with pytest.raises(UserError, match="holds no recorded step"):
        figures.open_subjects([empty], Excess(), "all")
    with pytest.raises(UserError, match="no trace at"):
        figures.open_subjects([tmp_path / "nowhere"], Excess(), "all")
    with pytest.raises(UserError, match="not a sinkscope trace"):
        figures.open_subjects([tmp_path], Excess(), "all")


def test_what_cannot_be_found_in_a_trace_is_refused_before_any_drawing(traces: Path) -> None:
    path = traces / "causal.zarr"
    with pytest.raises(UserError, match=r"causal.zarr: excess with epsilon 40 .* can never fire"):
        figures.open_subjects([path], Excess(40.0), "all")
    with pytest.raises(UserError, match=r"causal.zarr: unknown group"):
        figures.open_subjects([path], Excess(2.0), "everyone")
    with pytest.raises(UserError, match=r"causal.zarr: no received attention by queries 'masked'"):
        figures.open_subjects([path], Excess(2.0), "masked")


def test_a_figure_that_cannot_be_drawn_leaves_no_folder(traces: Path, tmp_path: Path) -> None:
    subjects, _ = figures.open_subjects([traces / "causal.zarr"], Excess(2.0), "all")
    with pytest.raises(UserError, match="nothing can be drawn; attention-maps: no full maps"):
        figures.make_figures(figures.Inputs(subjects=subjects), tmp_path / "out", only=["attention-maps"])
    assert not (tmp_path / "out").exists()


def test_files_and_folders_in_the_way(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="unknown figure 'pie'"):
        figures.check_figures(tmp_path, only=["pie"])
    with pytest.raises(UserError, match="unknown format 'gif'"):
        figures.check_figures(tmp_path, ending="gif")
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "deeper" / "still"):
        with pytest.raises(UserError, match=r"file is a file: name a folder"):
            figures.check_figures(out)
    with pytest.raises(UserError, match="holds other files"):
        figures.check_figures(tmp_path, overwrite=True)
    (tmp_path / "file").unlink()
    for name in ("heat-map", "scores"):
        (tmp_path / f"{name}.svg").write_text("old")
    with pytest.raises(UserError, match=r"heat-map.svg and 1 more exists already"):
        figures.check_figures(tmp_path)
    assert figures.check_figures(tmp_path, only=["tokens"]) == ["tokens"]
    assert figures.check_figures(tmp_path, ending="pdf") == sorted(figures.FIGURES)
    assert "scores" in figures.check_figures(tmp_path, overwrite=True)
    with pytest.raises(UserError, match="can't be made"):
        figures.make_figures(
            figures.Inputs(trainings=(figures.Training(name="a", rows=(log_row(1),)),)), Path("/proc/nowhere/here")
        )


def test_a_new_figure_is_found_by_its_name(tmp_path: Path) -> None:
    @figures.figure("blank", "nothing at all")
    def blank(_: figures.Inputs) -> Figure:
        return Figure()

    try:
        assert find_figure("blank").about == "nothing at all"
        made = figures.make_figures(figures.Inputs(), tmp_path, ending="png", only=["blank"])
        assert made.files["blank"].read_bytes().startswith(b"\x89PNG")
    finally:
        del figures.FIGURES._things["blank"]


def test_every_figure_is_named_and_explained() -> None:
    assert set(figures.FIGURES) == TRACED | NORMED | DROPPED | OTHERS | {"ablation", "training"}
    for name, kind in figures.FIGURES.items():
        assert kind.name == name
        assert kind.about[0].islower() and not kind.about.endswith(".")
    with pytest.raises(UserError, match="no trace was given"):
        figures.FIGURES["heat-map"].draw(figures.Inputs())
