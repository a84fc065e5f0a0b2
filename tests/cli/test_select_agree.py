"""`sinkscope select agree`: gates beside other ways, in batches as in one, and every mistake in one line."""

from pathlib import Path

import pytest
import torch
from cli_runs import Command
from little_selections import save_little

from sinkscope.cli.select.agree import averaged
from sinkscope.selection.agreement import Agreement, agreement
from sinkscope.selection.data import load_images
from sinkscope.selection.saved import load_selective


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    return save_little(tmp_path_factory.mktemp("agree") / "model")


def test_batches_come_to_what_all_pictures_come_to(sinkscope: Command, model: Path) -> None:
    given = ("--alpha", 0.25, "--n", 23, "--split", "validation", "--batch-size", 9)
    found = sinkscope("select", "agree", model, *given, "--json").document
    data = load_images("digits").validation
    expected = list(agreement(load_selective(model).model, data.pixels(range(23)), 0.25))
    assert {name: found[name] for name in ("file", "split", "n", "alpha", "notes")} == {
        "file": None, "split": "validation", "n": 23, "alpha": 0.25, "notes": [],
    }  # fmt: skip
    assert len(expected) == 6
    for one, whole in zip(found["agreements"], expected, strict=True):
        assert (one["gate"], one["other"], one["chance"]) == (whole.gate, whole.other, whole.chance)
        # A score at rounding's distance from another may change places in another batch: one pair in one picture.
        assert one["overlap"] == pytest.approx(whole.overlap, abs=0.02)
        assert one["correlation"] == pytest.approx(whole.correlation, abs=0.02)


def test_means_count_every_picture_once() -> None:
    def of(correlation: float, overlap: float) -> list[Agreement]:
        return [Agreement(gate=1, other="key-norm", correlation=correlation, overlap=overlap, chance=0.5)]

    [one] = averaged([(9, of(0.5, 0.2)), (1, of(-0.5, 0.7))])
    assert [one.correlation, one.overlap, one.chance] == pytest.approx([0.4, 0.25, 0.5])


def test_people_see_a_table_and_get_a_figure(sinkscope: Command, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "agree.svg"
    said = sinkscope("select", "agree", model, "--n", 400, "--out", out).table
    assert "n = 359, share 0.3" in said and "received-attention" in said and "chance" in said
    assert "has 359 pictures, all are taken where 400 were asked for" in said
    text = out.read_text()
    assert "gate before block 2" in text and "n = 359, share 0.3" in text
    sinkscope("select", "agree", model, "--n", 400, "--out", tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text() == text
