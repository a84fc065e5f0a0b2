"""Sources found by name: the two that need no network, idx files that are damaged, and what is told for mistakes."""

import gzip
import struct
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from data_pictures import rows_of
from PIL import Image
from sklearn.datasets import load_digits

from sinkscope.errors import UserError
from sinkscope.selection.data import (
    SOURCES,
    ImageSet,
    Splits,
    default_source,
    find_source,
    load_images,
    published,
)
from sinkscope.selection.data.published import read_idx

needs_package = pytest.mark.skipif(default_source() == "digits", reason="dataset-fashion-mnist is not installed")
IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"


def write_idx(path: Path, numbers: torch.Tensor, *, header: bytes | None = None, tail: bytes = b"") -> None:
    own = struct.pack(f">BBBB{numbers.ndim}I", 0, 0, 8, numbers.ndim, *numbers.shape)
    path.write_bytes(gzip.compress((own if header is None else header) + numbers.numpy().tobytes() + tail))


@pytest.fixture
def little_fashion(tmp_path: Path) -> Path:
    """The four files, with 23 and 11 pictures."""
    for start, count in (("train", 23), ("t10k", 11)):
        write_idx(tmp_path / f"{start}-images-idx3-ubyte.gz", torch.randint(0, 256, (count, 28, 28), dtype=torch.uint8))
        write_idx(tmp_path / f"{start}-labels-idx1-ubyte.gz", torch.arange(count, dtype=torch.uint8) % 10)
    return tmp_path


def test_every_source_says_how_it_is_written() -> None:
    assert set(SOURCES) == {"digits", "fashion-mnist", "folder", "hub"}
    with pytest.raises(UserError, match=r"'mnist': use one of digits, fashion-mnist\[:FOLDER\], folder:PATH, hub:NAME"):
        find_source("mnist")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("folder", "write folder:PATH"),
        ("hub:", "write hub:NAME"),
        ("digits:8", "digits takes nothing behind its name"),
        ("", "unknown image source ''"),
    ],
)
def test_a_source_written_wrong_is_refused(text: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        load_images(text)


@pytest.mark.parametrize("share", [0, 1, -0.1, float("nan")])
def test_a_validation_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(UserError, match="between 0 and 1"):
        load_images("digits", validation=share)


def test_a_size_below_one_is_refused() -> None:
    with pytest.raises(UserError, match="at least 1"):
        load_images("digits", size=0)


def test_digits_come_in_three_parts_of_all_classes() -> None:
    splits = load_images("digits", seed=3)
    parts = (splits.train, splits.validation, splits.test)
    assert splits.shape == (1, 8, 8) and splits.classes == tuple("0123456789")
    assert [len(part) for part in parts] == [1294, 144, 359]  # 20 % of 1797, 10 % of the rest
    for part in parts:
        shares = part.labels.bincount() / len(part)
        assert len(shares) == 10 and (shares - 0.1).abs().max() < 0.012  # the classes themselves have 9.7 to 10.2 %
    assert splits.test.name == "digits, test (20%, seed 3)"


def test_digits_are_those_of_scikit_learn() -> None:
    found = load_digits()
    # 17 shades on 256: nearest whole number
    shades = torch.tensor([int(level * 255 / 16 + 0.5) for level in range(17)], dtype=torch.uint8)
    images = shades[torch.from_numpy(found.images).long()]
    labels = dict(zip((image.numpy().tobytes() for image in images), found.target.tolist(), strict=True))
    splits = load_images("digits")
    seen = 0
    for part in (splits.train, splits.validation, splits.test):
        for image, label in zip(part.images, part.labels.tolist(), strict=True):
            assert labels[image.numpy().tobytes()] == label
            seen += 1
    assert seen == len(images)


def test_the_same_seed_gives_the_same_parts() -> None:
    one, again, other = (load_images("digits", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one.train.images, again.train.images)
    assert torch.equal(one.validation.images, again.validation.images)
    assert not torch.equal(one.validation.images, other.validation.images)
    assert not torch.equal(one.test.images, other.test.images)


def test_digits_may_be_enlarged() -> None:
    small, large = load_images("digits"), load_images("digits", size=16)
    assert large.shape == (1, 16, 16)
    by_hand = Image.fromarray(small.test.images[5, 0].numpy()).resize((16, 16), Image.Resampling.BICUBIC)
    assert np.array_equal(large.test.images[5, 0].numpy(), np.asarray(by_hand))


@pytest.fixture(scope="module")
def fashion() -> Splits:
    return load_images("fashion-mnist")


@needs_package
def test_fashion_mnist_is_what_was_published(fashion: Splits) -> None:
    splits = fashion
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [54000, 6000, 10000]
    assert splits.shape == (1, 28, 28) and splits.classes[9] == "Ankle boot"
    assert splits.train.labels.bincount().tolist() == [5400] * 10
    assert splits.validation.labels.bincount().tolist() == [600] * 10
    assert splits.test.labels.bincount().tolist() == [1000] * 10
    # .2860 and .3530 are the mean and deviation that everybody normalises these pictures by
    whole = torch.cat([splits.train.images, splits.validation.images]).float() / 255
    assert whole.mean().item() == pytest.approx(0.2860, abs=5e-5)
    assert whole.std().item() == pytest.approx(0.3530, abs=5e-5)


@needs_package
def test_the_test_part_is_the_published_one(fashion: Splits) -> None:
    with gzip.open(published.FOLDER / "t10k-labels-idx1-ubyte.gz") as stream:
        assert stream.read()[8:] == fashion.test.labels.to(torch.uint8).numpy().tobytes()


def test_the_test_part_does_not_depend_on_the_seed(little_fashion: Path) -> None:
    one, other = (load_images(f"fashion-mnist:{little_fashion}", seed=seed, validation=0.3) for seed in (0, 1))
    assert torch.equal(one.test.images, other.test.images)
    assert torch.equal(one.test.images.squeeze(1), read_idx(little_fashion / "t10k-images-idx3-ubyte.gz", 3))
    assert rows_of(one.validation.images) != rows_of(other.validation.images)


@pytest.mark.parametrize(
    ("module", "text", "told"),
    [
        ("sklearn.datasets", "digits", "digits come with scikit-learn"),
        ("datasets", "hub:a/b", "needs the package data"),
    ],
)
def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch, module: str, text: str, told: str) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=rf"{told}.*: pip install 'sinkscope\[vision\]'"):
        load_images(text)


def test_the_default_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(published, "FOLDER", tmp_path)
    assert default_source() == "digits"
    with pytest.raises(UserError, match="apt install dataset-fashion-mnist"):
        load_images("fashion-mnist")


def test_the_default_is_fashion_where_it_is_installed(monkeypatch: pytest.MonkeyPatch, little_fashion: Path) -> None:
    monkeypatch.setattr(published, "FOLDER", little_fashion)
    assert default_source() == "fashion-mnist"
    assert len(load_images("fashion-mnist").test) == 11


def test_fashion_mnist_may_lie_elsewhere(little_fashion: Path) -> None:
    splits = load_images(f"fashion-mnist:{little_fashion}", validation=0.2)
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (18, 5, 11)
    assert not rows_of(splits.train.images) & rows_of(splits.validation.images)
    whole = read_idx(little_fashion / IMAGES, 3)
    assert rows_of(splits.train.images) | rows_of(splits.validation.images) == rows_of(whole)


def test_one_missing_file_is_named(little_fashion: Path) -> None:
    (little_fashion / LABELS).unlink()
    with pytest.raises(UserError, match=rf"{LABELS} is missing"):
        load_images(f"fashion-mnist:{little_fashion}")


def test_labels_that_do_not_fit_are_refused(little_fashion: Path) -> None:
    write_idx(little_fashion / LABELS, torch.zeros(22, dtype=torch.uint8))
    with pytest.raises(UserError, match=rf"{LABELS}: wanted 23 labels below 10, got 22"):
        load_images(f"fashion-mnist:{little_fashion}")
    write_idx(little_fashion / LABELS, torch.full((23,), 10, dtype=torch.uint8))
    with pytest.raises(UserError, match="got 23 up to 10"):
        load_images(f"fashion-mnist:{little_fashion}")


def header(*lengths: int, kind: int = 8) -> bytes:
    return struct.pack(f">BBBB{len(lengths)}I", 0, 0, kind, len(lengths), *lengths)


@pytest.mark.parametrize(
    ("begin", "tail", "told"),
    [
        (header(2, 3, 5, kind=13), b"", "no idx file of bytes in 3 dimensions .begins with 00000d03"),
        (header(6, 5), b"", "begins with 00000802"),
        (b"", b"", "no idx file"),
        (header(2, 3, 7), b"", "says 42 bytes, but there are only 30"),
        (header(2, 3, 5), b"x", "says 30 bytes, but there are more"),
        (header(0, 3, 5), b"", "nothing, or more than"),
        (header(2**31, 2**31, 2**31), b"", "nothing, or more than"),
        (header(2**12, 2**10, 2**10), b"", "4294967296 bytes, but there are only 30"),
    ],
)
def test_an_idx_file_that_is_none_is_refused(tmp_path: Path, begin: bytes, tail: bytes, told: str) -> None:
    path = tmp_path / "it.gz"
    write_idx(path, torch.zeros(2, 3, 5, dtype=torch.uint8), header=begin, tail=tail)
    with pytest.raises(UserError, match=told):
        read_idx(path, 3)


def test_a_damaged_gz_is_one_line_wherever_it_is_cut_or_bent(tmp_path: Path) -> None:
    whole, path = tmp_path / "whole.gz", tmp_path / "bent.gz"
    numbers = torch.randint(0, 256, (5, 7, 3), dtype=torch.uint8)
    write_idx(whole, numbers)
    assert torch.equal(read_idx(whole, 3), numbers)
    content = whole.read_bytes()
    told = []
    for place in range(len(content)):
        for bent in (content[:place], content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :]):
            path.write_bytes(bent)
            try:
                same = torch.equal(read_idx(path, 3), numbers)
            except UserError as error:
                told.append(str(error))
            else:
                # flags, time and system in the head of a gz are nobody's concern; the rest is under its sum
                assert same and place in range(3, 10)
    assert len(told) > 1.9 * len(content)
    assert all(line.startswith(str(path)) and "\n" not in line for line in told)


def test_a_plain_file_under_the_name_of_a_gz_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plain.gz"
    path.write_bytes(header(1, 1, 1) + b"x")
    with pytest.raises(UserError, match="missing, damaged or truncated"):
        read_idx(path, 3)


def test_the_first_pictures_hold_all_classes() -> None:
    labels = torch.arange(300) // 100
    pictures = (labels * 50).view(-1, 1, 1, 1).expand(-1, 1, 2, 2).to(torch.uint8)
    ordered = ImageSet(images=pictures, labels=labels, classes=("a", "b", "c"), name="by class")
    found = ordered.first(30)
    assert set(found.labels.tolist()) == {0, 1, 2} and len(found) == 30 and found.name == "by class"
    assert torch.equal(found.images[:, 0, 0, 0].long(), found.labels * 50), "a picture keeps its label"
    assert torch.equal(ordered.first(40).labels[:30], found.labels)
    assert torch.equal(found.first(7).labels, found.labels[:7]), "what is mixed keeps its order"
