"""`sinkscope select maps`: a figure, what it shows as JSON, and every mistake in one line."""

from pathlib import Path

import pytest
import torch
from cli_runs import Command, Outcome, files_under
from little_selections import PATCHES, save_little

from sinkscope.selection import data
from sinkscope.selection.data import load_images
from sinkscope.selection.saved import load_selective, save_selective


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    return save_little(tmp_path_factory.mktemp("maps") / "d0" / "model")


def test_the_document_holds_what_the_model_does(sinkscope: Command, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "maps.svg"
    given = ("--alpha", "0.1,0.4", "--selector", "gates,random", "--pictures", 3, "--seed", 5, "--out", out)
    found = sinkscope("select", "maps", model, *given, "--json").document
    data, trained = load_images("digits").test.take(3, seed=5), load_selective(model)
    assert (found["file"], found["model"], found["split"], found["grid"]) == (str(out), str(model), "test", [4, 4])
    assert found["data"] == data.name and found["notes"] == []
    assert [one["label"] for one in found["pictures"]] == [data.classes[label] for label in data.labels.tolist()]
    asked = [(None, 1.0), ("gates", 0.1), ("gates", 0.4), ("random", 0.1), ("random", 0.4)]
    for picture in found["pictures"]:
        assert [(one["selector"], one["alpha"]) for one in picture["choices"]] == asked
        assert [one["sent"] for one in picture["choices"]] == [PATCHES, 2, 7, 2, 7]
    for number, (name, alpha) in enumerate(asked):
        picked = trained.model(data.pixels(range(3)), alpha, selector=name or "gates")
        for row, picture in enumerate(found["pictures"]):
            one = picture["choices"][number]
            assert one["kept"] == picked.kept[row].nonzero().flatten().tolist()
            assert one["predicted"] == data.classes[int(picked.logits[row].argmax())]
            assert one["right"] == (one["predicted"] == picture["label"])
    assert out.read_text().startswith("<?xml")


def test_without_a_model_the_shipped_one_is_taken(
    sinkscope: Command, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named after the data that are here."""
    monkeypatch.setattr(data, "default_source", lambda: str(model))
    found = sinkscope("select", "maps", "--pictures", 1, "--out", tmp_path / "maps.svg", "--json").document
    assert found["model"] == str(model)


def test_the_same_command_writes_the_same_bytes(sinkscope: Command, model: Path, tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        sinkscope("select", "maps", model, "--pictures", 2, "--out", tmp_path / name)
    one, two = ((tmp_path / name).read_bytes() for name in ("one.svg", "two.svg"))
    assert one == two
    text = one.decode()
    assert "d0/model, digits, test" in text and "share 0.3" in text and "5 of 16" in text
    assert "chosen by gates" in text


def test_people_see_how_many_were_right(sinkscope: Command, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "maps.png"
    said = sinkscope("select", "maps", model, "--alpha", "0.3", "--pictures", 4, "--out", out).table
    assert "5 of 16" in said and "16 of 16" in said and "of 4" in said
    assert f"{out}: 4 pictures, 2 columns" in said
    assert out.read_bytes().startswith(b"\x89PNG")


def test_a_mode_that_keeps_no_budget_tells_least_and_most(sinkscope: Command, tmp_path: Path) -> None:
    """Random thresholds near random scores: in 12 pictures some keep more patches than others."""
    folder = save_little(tmp_path / "model")
    trained = load_selective(folder)
    for place in trained.model.gate_places:
        gate = trained.model.gate_at(place)
        torch.nn.init.zeros_(gate.score.bias)
        torch.nn.init.zeros_(gate.threshold.bias)
    save_selective(trained, folder)
    given = ("--pictures", 12, "--mode", "soft", "--out", tmp_path / "maps.png", "--alpha", "0.5")
    found = sinkscope("select", "maps", folder, *given, "--json").document
    sent = [picture["choices"][1]["sent"] for picture in found["pictures"]]
    assert min(sent) < max(sent)
    said = sinkscope("select", "maps", folder, *given, "--overwrite").table
    assert f"{min(sent)} to {max(sent)} of 16" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--alpha", "0"), "alpha must lie in (0, 1], the share of patches to keep; got 0"),
        (("--alpha", "1.5"), "got 1.5"),
        (("--alpha", "much"), "--alpha takes numbers with commas between them, got 'much'"),
        (("--alpha", "0.3,0.3"), "--alpha names 0.3 twice"),
        (("--selector", "moon"), "unknown selector 'moon': use one of"),
        (("--selector", "gates,"), "--selector takes names"),
        (("--mode", "moon"), "unknown mode 'moon'"),
        (("--mode=soft", "--selector=random"), "--mode is of the gates"),
        (("--pictures", "0"), "greater than or equal to 1"),
        (("--split", "train"), "'train' is not one of"),
        (("--out", "maps.bmp"), "maps.bmp: figures are written as svg, pdf, png"),
        (("--out", "{model}"), "figures are written as"),
        (("--out", "{old}"), "exists already: replace it (--overwrite)"),
        (("--data", "moon"), "unknown image source 'moon'"),
        (("--image-size", "16"), "the model takes images of (channel, row, column) = 1 x 8 x 8, got 1 x 16 x 16"),
        (("--device", "moon"), "moon"),
    ],
)
def test_mistakes_are_one_line(
    sinkscope: Command, model: Path, tmp_path: Path, arguments: tuple[str, str], message: str
) -> None:
    old = tmp_path / "old.svg"
    old.write_text("old")
    before = files_under(tmp_path)
    option, value = arguments
    given = (option, value.format(model=model, old=old))
    out = () if option == "--out" else ("--out", tmp_path / "maps.svg")
    assert message in sinkscope("select", "maps", model, *given, *out).mistake
    assert files_under(tmp_path) == before


def test_what_is_no_model_is_told(sinkscope: Command, tmp_path: Path) -> None:
    assert "holds no trained selection" in refused(sinkscope, tmp_path / "nowhere", tmp_path).mistake
    other = save_little(tmp_path / "other", classes=("a", "b", "c"))
    assert "tells 3 classes apart" in refused(sinkscope, other, tmp_path).mistake
    assert not (tmp_path / "maps.svg").exists()


def refused(sinkscope: Command, model: Path, folder: Path) -> Outcome:
    return sinkscope("select", "maps", model, "--out", folder / "maps.svg")
