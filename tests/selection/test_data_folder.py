"""Folders of pictures: how they may be laid out, what becomes of the pixels, and what is skipped or refused."""

import shutil
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_pictures import as_images, made_bytes, rows_of, write_class
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from sinkscope.errors import UserError
from sinkscope.selection.data import Preprocessing, Splits, describe_skipped, load_images
from sinkscope.selection.data.images import MAX_GIB
from sinkscope.selection.data.reading import Picture, read_parts


def load(folder: Path, **choices: Any) -> Splits:
    return load_images(f"folder:{folder}", **choices)


@pytest.fixture
def parted(tmp_path: Path) -> Path:
    """train/ and test/ of grey pictures of 5 x 7, two classes."""
    for part, count in (("train", 11), ("test", 3)):
        for name in ("rose", "daisy"):
            write_class(tmp_path / part / name, [f"{one:02}.png" for one in range(count)])
    return tmp_path


@pytest.fixture
def in_one_piece(tmp_path: Path) -> Path:
    """Three classes of 10 colour pictures of 4 x 6."""
    for name in ("b", "a", "c"):
        write_class(tmp_path / name, [f"{one}.png" for one in range(10)], (4, 6, 3))
    return tmp_path


def test_parts_are_read_by_their_names_and_in_order(tmp_path: Path) -> None:
    shown = {
        (part, name): write_class(tmp_path / part / name, ["10.png", "2.png", "1.png"])
        for part in ("train", "test")
        for name in ("rose", "daisy")
    }
    splits = load(tmp_path)
    assert splits.classes == ("daisy", "rose") and splits.shape == (1, 5, 7)
    in_order = [shown["test", name][file] for name in ("daisy", "rose") for file in ("1.png", "10.png", "2.png")]
    assert torch.equal(splits.test.images, as_images(in_order))
    assert splits.test.labels.tolist() == [0, 0, 0, 1, 1, 1]
    whole = as_images([array for key, files in shown.items() if key[0] == "train" for array in files.values()])
    assert rows_of(torch.cat([splits.train.images, splits.validation.images])) == rows_of(whole)
    assert (len(splits.train), len(splits.validation)) == (5, 1)


def test_val_is_the_test_part_where_there_is_no_other(parted: Path) -> None:
    test = load(parted).test.images
    (parted / "test").rename(parted / "val")
    splits = load(parted)
    assert torch.equal(splits.test.images, test) and len(splits.validation) == 2


def test_val_is_the_validation_part_beside_a_test_part(parted: Path) -> None:
    held = [write_class(parted / "valid" / name, ["1.png", "2.png"]) for name in ("daisy", "rose")]
    splits = load(parted)
    assert len(splits.train) == 22 and len(splits.test) == 6
    assert torch.equal(splits.validation.images, as_images([one for files in held for one in files.values()]))


def test_one_piece_is_split_by_seed(in_one_piece: Path) -> None:
    splits, other = load(in_one_piece), load(in_one_piece, seed=1)
    parts = [splits.train, splits.validation, splits.test]
    assert splits.classes == ("a", "b", "c") and splits.shape == (3, 4, 6)
    assert [len(part) for part in parts] == [22, 2, 6]
    assert splits.test.labels.bincount().tolist() == [2, 2, 2]
    assert len(set.union(*(rows_of(part.images) for part in parts))) == 30
    assert torch.equal(splits.train.images, load(in_one_piece).train.images)
    assert rows_of(splits.test.images) != rows_of(other.test.images)


def test_a_class_may_be_called_train(in_one_piece: Path) -> None:
    (in_one_piece / "b").rename(in_one_piece / "train")
    assert load(in_one_piece).classes == ("a", "c", "train")


def test_a_grey_picture_among_colours_gets_three_equal_channels(in_one_piece: Path) -> None:
    grey = write_class(in_one_piece / "a", ["3.png"], (4, 6))["3.png"]
    splits = load(in_one_piece)
    everything = torch.cat([splits.train.images, splits.validation.images, splits.test.images])
    assert np.stack([grey] * 3).tobytes() in rows_of(everything)


def test_the_shorter_side_is_resized_and_the_middle_cut_out(parted: Path) -> None:
    picture = np.zeros((12, 40), dtype=np.uint8)
    picture[:, 8:32] = 200  # wider than the square, by what a bicubic reaches over its edge
    Image.fromarray(picture).save(parted / "test" / "daisy" / "00.png")
    Image.fromarray(picture.T).save(parted / "test" / "daisy" / "01.png")
    splits = load(parted, size=6)
    assert splits.shape == (1, 6, 6)
    assert (splits.test.images[:2] == 200).all()


def test_a_resized_picture_is_resized_as_by_hand(parted: Path) -> None:
    array = write_class(parted / "test" / "daisy", ["00.png"], (10, 26))["00.png"]
    by_hand = np.asarray(Image.fromarray(array).resize((13, 5), Image.Resampling.BICUBIC))[:, 4:9]
    assert np.array_equal(load(parted, size=5).test.images[0, 0].numpy(), by_hand)


def test_the_first_picture_of_another_size_is_named(parted: Path) -> None:
    write_class(parted / "train" / "rose", ["04.png", "07.png"], (7, 5))
    with pytest.raises(UserError, match=r"train/rose/04\.png has 7 x 5 .* those before it 5 x 7; give a size"):
        load(parted)
    assert load(parted, size=4).shape == (1, 4, 4)


def test_16_bits_are_cut_to_8(parted: Path) -> None:
    deep = torch.randint(0, 65536, (5, 7)).numpy().astype(np.uint16)
    Image.fromarray(deep).save(parted / "test" / "daisy" / "00.png")
    assert np.array_equal(load(parted).test.images[0, 0].numpy(), deep // 256)


def test_transparent_places_are_white(parted: Path) -> None:
    grey, clear = made_bytes(5, 7), made_bytes(5, 7) > 127
    picture = Image.merge("LA", [Image.fromarray(grey), Image.fromarray(np.where(clear, 0, 255).astype(np.uint8))])
    picture.save(parted / "test" / "daisy" / "00.png")
    assert np.array_equal(load(parted).test.images[0, 0].numpy(), np.where(clear, 255, grey))


def test_a_camera_held_upright_is_obeyed(parted: Path) -> None:
    sideways, turned = made_bytes(7, 5), Image.Exif()
    turned[0x0112] = 6  # "the top is at the right": turn clockwise to see it
    Image.fromarray(sideways).save(parted / "test" / "daisy" / "00.png", exif=turned)
    assert np.array_equal(load(parted).test.images[0, 0].numpy(), np.rot90(sideways, -1))


def test_what_is_unreadable_is_named_and_skipped(parted: Path) -> None:
    cut = parted / "train" / "daisy" / "03.png"
    cut.write_bytes(cut.read_bytes()[:-30])
    (parted / "train" / "rose" / "notes.txt").write_text("roses")
    (parted / "train" / "rose" / "deep.tiff").write_bytes(_tiff_of_floats())
    (parted / "train" / "rose" / ".DS_Store").write_bytes(b"hidden")
    splits = load(parted)
    assert len(splits.train) + len(splits.validation) == 21 and len(splits.test) == 6
    assert [Path(path).name for path, _ in splits.skipped] == ["03.png", "deep.tiff", "notes.txt"]
    told = describe_skipped(splits.skipped)
    assert told is not None and told.startswith("skipped 3 files") and "not a picture in BMP" in told
    assert "\n" not in told and "32 bits" in told


def _tiff_of_floats() -> bytes:
    stream = BytesIO()
    Image.fromarray(torch.rand(5, 7).numpy()).save(stream, "TIFF")
    return stream.getvalue()


def test_a_colour_picture_that_cannot_be_read_makes_no_grey_folder_colour(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for name in ("daisy", "rose"):
            write_class(tmp_path / part / name, ("0.png", "1.png", "2.png", "3.png"))
    cut = tmp_path / "train" / "daisy" / "0.png"
    Image.fromarray(made_bytes(5, 7, 3)).save(cut)
    cut.write_bytes(cut.read_bytes()[:-40])
    splits = load(tmp_path)
    assert splits.train.images.shape[1:] == (1, 5, 7)
    assert [Path(path).name for path, _ in splits.skipped] == ["0.png"]


def test_a_dangling_link_is_skipped(parted: Path) -> None:
    (parted / "train" / "daisy" / "zz.png").symlink_to(parted / "nowhere.png")
    assert "No such file" in load(parted).skipped[0][1]


def test_no_program_is_started_for_a_picture(parted: Path) -> None:
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 7 5\n%%EndComments\nshowpage\n"
    (parted / "train" / "daisy" / "zz.png").write_bytes(postscript)
    assert "not a picture" in load(parted).skipped[0][1]


def test_a_class_of_which_nothing_can_be_read_is_refused(parted: Path) -> None:
    for path in (parted / "test" / "rose").iterdir():
        path.write_bytes(b"rose")
    with pytest.raises(UserError, match=r"test/rose: no picture of this class can be read; skipped 3 .*rose/00\.png"):
        load(parted)


@pytest.mark.parametrize("size", [None, 4])
def test_folders_of_which_nothing_can_be_read_are_refused(parted: Path, size: int | None) -> None:
    for path in parted.glob("*/*/*"):
        path.write_bytes(b"no picture")
    with pytest.raises(UserError, match=r"no(ne of 28 files|thing).*not a picture"):
        load_images(f"folder:{parted}", size=size)


def test_classes_that_differ_are_refused(parted: Path) -> None:
    write_class(parted / "test" / "tulip", ["1.png"])
    with pytest.raises(UserError, match=r"class 'tulip' is in test but not in train \(1 of 3"):
        load(parted)
    shutil.rmtree(parted / "test" / "tulip")
    shutil.rmtree(parted / "test" / "daisy")
    with pytest.raises(UserError, match="class 'daisy' is in train but not in test"):
        load(parted)


def test_an_empty_class_is_refused(in_one_piece: Path) -> None:
    (in_one_piece / "d").mkdir()
    with pytest.raises(UserError, match=r"/d: a class with no pictures; wanted"):
        load(in_one_piece)
    (in_one_piece / "d" / "deeper").mkdir()
    with pytest.raises(UserError, match=r"/d: a class with no pictures but further folders"):
        load(in_one_piece)


def test_folders_without_classes_are_refused(tmp_path: Path) -> None:
    write_class(tmp_path / "flat", ["1.png"])
    with pytest.raises(UserError, match="flat: has no folder in it; wanted one sub-folder a class"):
        load(tmp_path / "flat")
    with pytest.raises(UserError, match="has 1 class, at least two"):
        load(tmp_path)
    with pytest.raises(UserError, match=r"nowhere: not a folder that can be read \(No such file"):
        load(tmp_path / "nowhere")
    with pytest.raises(UserError, match="Not a directory"):
        load(tmp_path / "flat" / "1.png")


def test_parts_that_do_not_go_together_are_refused(parted: Path) -> None:
    (parted / "more").mkdir()
    with pytest.raises(UserError, match="beside test and train there is more"):
        load(parted)
    (parted / "more").rename(parted / "testing")
    with pytest.raises(UserError, match="test and testing all say that they are the test part"):
        load(parted)
    (parted / "testing").rmdir()
    shutil.rmtree(parted / "test")
    with pytest.raises(UserError, match="has train/ but no test/ or val/"):
        load(parted)
    (parted / "train").rename(parted / "test")
    with pytest.raises(UserError, match="has test/ but no train/"):
        load(parted)


def test_too_many_pixels_are_refused_before_they_are_read(parted: Path) -> None:
    with pytest.raises(UserError, match=rf"28 pictures of 1 x 20000 x 20000 .* {MAX_GIB} are allowed"):
        load(parted, size=20000)


@st.composite
def bent_files(draw: st.DrawFn) -> bytes:
    """A picture file of one of the formats, cut and with bytes changed."""
    stream = BytesIO()
    Image.fromarray(made_bytes(5, 7, 3)).save(stream, draw(st.sampled_from(["PNG", "JPEG", "GIF", "BMP", "WEBP"])))
    content = bytearray(stream.getvalue()[: draw(st.integers(0, 2000))])
    for place, byte in draw(st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=5)):
        if place < len(content):
            content[place] = byte
    return bytes(content)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(content=bent_files())
def test_a_bent_picture_is_read_or_skipped(content: bytes) -> None:
    whole = BytesIO()
    Image.fromarray(made_bytes(5, 7, 3)).save(whole, "PNG")
    pictures = [
        Picture(name, lambda data=data: BytesIO(data), label)  # type: ignore[misc]
        for label, (name, data) in enumerate([("whole", whole.getvalue()), ("bent", content)])
    ]
    images = read_parts({"train": pictures}, ("a", "b"), Preprocessing().at(4), "mine")["train"]
    assert len(images) + len(images.skipped) == 2 and images.labels[0] == 0
    assert all(name == "bent" and reason and "\n" not in reason for name, reason in images.skipped)


def test_a_picture_that_grows_beyond_bounds_is_skipped(parted: Path) -> None:
    Image.fromarray(np.zeros((1, 60000), dtype=np.uint8)).save(parted / "test" / "daisy" / "00.png")
    (skipped,) = load(parted, size=64).test.skipped
    assert "so narrow that it would take 64 x 3840000 pixels" in skipped[1]
