"""Data sets in the hub's formats, all of them local: columns, parts and labels found, and what is refused."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from data_pictures import Bytes, as_images, made_bytes, rows_of, write_class
from datasets import ClassLabel, Dataset, Features, Value
from huggingface_hub import constants
from PIL import Image

from sinkscope.errors import UserError
from sinkscope.selection.data import load_images

ABC = ClassLabel(names=["ant", "bee", "cat"])
Write = Callable[..., list[Bytes]]


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a parquet file of random colour pictures into the data set, and hand back their pixels."""

    def one(split: str, labels: Sequence[Any], kind: Any = ABC, column: str = "label", **more: Any) -> list[Bytes]:
        arrays = [made_bytes(5, 7, 3) for _ in labels]
        columns = {"image": [Image.fromarray(array) for array in arrays], column: list(labels)}
        features = {"image": datasets.Image(), column: kind}
        for name, (feature, values) in more.items():
            columns[name], features[name] = values, feature
        folder = tmp_path / "set" / "data"
        folder.mkdir(parents=True, exist_ok=True)
        Dataset.from_dict(columns, features=Features(features)).to_parquet(folder / f"{split}-00000-of-00001.parquet")
        return arrays

    return one


@pytest.fixture
def name(tmp_path: Path) -> str:
    return f"hub:{tmp_path / 'set'}"


def test_parts_and_columns_are_found(write: Write, name: str) -> None:
    train, test = write("train", [0, 1, 2] * 10), write("test", [2, 1, 0, 0])
    splits = load_images(name)
    assert splits.classes == ("ant", "bee", "cat") and splits.shape == (3, 5, 7)
    assert torch.equal(splits.test.images, as_images(test)) and splits.test.labels.tolist() == [2, 1, 0, 0]
    assert (len(splits.train), len(splits.validation)) == (27, 3)
    assert splits.validation.labels.tolist() in ([0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0])
    assert rows_of(torch.cat([splits.train.images, splits.validation.images])) == rows_of(as_images(train))


def test_a_validation_part_is_used_where_there_is_a_test_part_too(write: Write, name: str) -> None:
    write("train", [0, 1, 2] * 4)
    held, test = write("validation", [0, 1]), write("test", [1, 2, 0])
    splits = load_images(name)
    assert torch.equal(splits.validation.images, as_images(held))
    assert torch.equal(splits.test.images, as_images(test)) and len(splits.train) == 12


def test_a_test_part_whose_labels_are_withheld_is_replaced(write: Write, name: str) -> None:
    write("train", [0, 1, 2] * 4)
    held = write("validation", [0, 1])
    write("test", [-1, -1, -1])
    splits = load_images(name)
    assert torch.equal(splits.test.images, as_images(held)) and len(splits.train) + len(splits.validation) == 12


def test_one_parquet_file_is_split_by_seed(write: Write, tmp_path: Path) -> None:
    write("train", [0, 1, 2] * 10)
    file = tmp_path / "set" / "data" / "train-00000-of-00001.parquet"
    splits = load_images(f"hub:{file}", size=4)
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (22, 2, 6)
    assert splits.test.labels.bincount().tolist() == [2, 2, 2] and splits.shape == (3, 4, 4)


def test_words_and_numbers_can_be_classes(write: Write, name: str) -> None:
    write("train", ["oak", "elm", "oak", None, "elm", "oak"], Value("string"), "target")
    write("test", ["elm", "oak"], Value("string"), "target")
    words = load_images(name)
    assert words.classes == ("elm", "oak") and words.test.labels.tolist() == [0, 1]
    assert len(words.train) + len(words.validation) == 5
    write("train", [10, 9, 10, 9], Value("int16"))
    write("test", [10], Value("int16"))
    numbers = load_images(name)
    assert numbers.classes == ("9", "10") and numbers.test.labels.tolist() == [1]


def test_a_label_that_training_does_not_have_is_refused(write: Write, name: str) -> None:
    write("train", ["oak", "elm"] * 3, Value("string"))
    write("test", ["elm", "fir"], Value("string"))
    with pytest.raises(UserError, match=r"class 'fir' is in test but not in train"):
        load_images(name)


def test_two_label_columns_need_a_choice(write: Write, name: str) -> None:
    coarse = {"coarse": (ClassLabel(names=["x", "y"]), [0, 1] * 3), "score": (Value("float32"), [0.5] * 6)}
    write("train", [0, 1, 2] * 2, column="fine", **coarse)
    with pytest.raises(
        UserError, match=r"label column\? fine and coarse could .* fine or coarse with hub:NAME\?label="
    ):
        load_images(name)
    assert load_images(f"{name}?label=coarse").classes == ("x", "y")
    assert load_images(f"{name}?label=fine").classes == ("ant", "bee", "cat")
    with pytest.raises(UserError, match=r"no label column 'score'; the columns are .*score .float32"):
        load_images(f"{name}?label=score")


def test_two_image_columns_need_a_choice(write: Write, name: str) -> None:
    masks = [made_bytes(3, 2) for _ in range(6)]
    write("train", [0, 1, 2] * 2, mask=(datasets.Image(), [Image.fromarray(mask) for mask in masks]))
    with pytest.raises(UserError, match="image and mask could all be it"):
        load_images(name)
    splits = load_images(f"{name}?image=mask&label=label")
    everything = torch.cat([splits.train.images, splits.validation.images, splits.test.images])
    assert rows_of(everything) == rows_of(as_images(masks))


def test_columns_that_are_not_there_are_missed(tmp_path: Path, write: Write, name: str) -> None:
    write("train", [0, 1], Value("float32"), "score")
    with pytest.raises(UserError, match=r"no column can be the label column; the columns are image .Image., score"):
        load_images(name)
    write("train", [3, 4], Value("int64"), "age")
    with pytest.raises(UserError, match=r"none is called so; choose age with"):
        load_images(name)
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "some.csv").write_text("label,price\n1,2\n0,3\n")
    with pytest.raises(UserError, match=r"no column can be the image column; the columns are label .int64"):
        load_images(f"hub:{tmp_path / 'table'}")


def test_labels_are_needed(write: Write, name: str) -> None:
    write("train", [-1, -1])
    with pytest.raises(UserError, match="no picture in it has a label"):
        load_images(name)
    write("train", [7, 7], Value("int64"))
    with pytest.raises(UserError, match="has 1 class, at least two"):
        load_images(name)


def test_parts_of_other_names_are_refused(write: Write, name: str) -> None:
    write("unsupervised", [0, 1, 2])
    write("extra", [0, 1, 2])
    with pytest.raises(UserError, match="its parts are extra, unsupervised; a train and a test part are needed"):
        load_images(name)


def test_a_row_that_is_no_picture_is_named_and_skipped(write: Write, name: str, tmp_path: Path) -> None:
    write("train", [0, 1, 2] * 5)
    stored = {
        "image": [{"bytes": b"not one", "path": None}, None, {"bytes": None, "path": "https://example.invalid/a"}]
    }
    features = Features({"image": datasets.Image(), "label": ABC})
    table = Dataset.from_dict({**stored, "label": [0, 1, 2]}, features=features).data.table
    file = tmp_path / "set/data/test-00000-of-00001.parquet"
    pytest.importorskip("pyarrow.parquet").write_table(table, file)  # without fetching the address
    with pytest.raises(UserError, match=r"test: nothing to read; skipped 3 .*: test row 0 .not a picture"):
        load_images(name)
    file.rename(tmp_path / "set/data/train-00001-of-00002.parquet")
    splits = load_images(name)
    assert [reason.split()[0] for _, reason in splits.skipped] == ["not", "the", "[Errno"]
    assert len(splits.train) + len(splits.validation) + len(splits.test) == 15


def test_a_folder_of_pictures_gives_the_same_as_our_own_reader(tmp_path: Path) -> None:
    for part, count in (("train", 12), ("test", 3)):
        for kind in ("rose", "daisy"):
            write_class(tmp_path / "flowers" / part / kind, [f"{one}.png" for one in range(count)])
    ours, theirs = load_images(f"folder:{tmp_path / 'flowers'}"), load_images(f"hub:{tmp_path / 'flowers'}")
    assert ours.classes == theirs.classes
    for one, other in ((ours.train, theirs.train), (ours.validation, theirs.validation), (ours.test, theirs.test)):
        assert torch.equal(one.images, other.images) and torch.equal(one.labels, other.labels)


def test_a_damaged_parquet_file_is_one_line(write: Write, name: str, tmp_path: Path) -> None:
    write("train", [0, 1, 2])
    file = tmp_path / "set" / "data" / "train-00000-of-00001.parquet"
    file.write_bytes(file.read_bytes()[:400])
    with pytest.raises(UserError, match=r"datasets can't load it: .*Parquet") as caught:
        load_images(name)
    assert "\n" not in str(caught.value)


def test_code_in_a_data_set_is_never_run(tmp_path: Path) -> None:
    folder = tmp_path / "scripted"
    folder.mkdir()
    (folder / "scripted.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(UserError, match="scripts are no longer supported"):
        load_images(f"hub:{folder}")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("hub:csv", "names on the hub are written OWNER/NAME"),
        ("hub:nobody/nothing", "can't load it: Couldn't reach 'nobody/nothing'"),
        ("hub:no/such/folder", "can't load it: Couldn't find any data file"),
        ("hub:o/n?split=train", "may stand config, revision, image, label"),
        ("hub:o/n?label", "may stand config, revision, image, label"),
        ("hub:?label=x", "may stand config"),
    ],
)
def test_what_cannot_be_had_is_told_in_one_line(asked: str, told: str) -> None:
    with pytest.raises(UserError, match=told) as caught:
        load_images(asked)
    assert "\n" not in str(caught.value)


def test_a_damaged_readme_and_an_empty_folder_are_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    with pytest.raises(UserError, match="doesn't contain any data files"):
        load_images(f"hub:{tmp_path / 'set'}")
    (tmp_path / "set" / "README.md").write_text("---\n: [\n---\n")
    (tmp_path / "set" / "a.csv").write_text("a\n1\n")
    with pytest.raises(UserError, match="can't load it: while parsing") as caught:
        load_images(f"hub:{tmp_path / 'set'}")
    assert "\n" not in str(caught.value)
