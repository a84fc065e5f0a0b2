"""Sets of pictures in memory: what they refuse, how floats are made of bytes, and how parts are drawn."""

import pytest
import torch
from data_pictures import made_set, rows_of
from hypothesis import given
from hypothesis import strategies as st

from sinkscope.errors import UserError
from sinkscope.selection.data import ImageSet, Preprocessing, Splits, describe_skipped
from sinkscope.selection.data.images import MAX_GIB, check_memory, stratified
from sinkscope.selection.data.sources import as_parts, carve

Labels = st.lists(st.integers(0, 4), min_size=1, max_size=60).map(torch.tensor)


def test_bytes_become_floats_between_minus_one_and_one() -> None:
    made = made_set(11)
    pixels = made.pixels([10, 0, 3])
    assert pixels.dtype == torch.float32 and pixels.shape == (3, 1, 5, 7)
    byte = made.images[0, 0, 4, 2].item()
    # float32 holds 24 bits: a division and a subtraction err by less than 2^-22 each
    assert pixels[1, 0, 4, 2].item() == pytest.approx(byte / 127.5 - 1, abs=2**-21)
    assert torch.equal(Preprocessing().pixels(torch.tensor([0, 255], dtype=torch.uint8)), torch.tensor([-1.0, 1.0]))


def test_floats_become_the_same_bytes_again() -> None:
    every = torch.arange(256, dtype=torch.uint8)
    for scale in (Preprocessing(), Preprocessing(mean=(0.485,), std=(0.229,))):
        assert torch.equal(scale.bytes(scale.pixels(every)), every)
        assert scale.bytes(torch.tensor([-7.0, 7.0])).tolist() == [0, 255]


def test_indices_may_be_a_tensor_or_a_list() -> None:
    made = made_set(7)
    assert torch.equal(made.pixels(torch.tensor([6, 2])), made.pixels([6, 2]))
    assert torch.equal(made.pixels(range(1, 3)), made.pixels([1, 2]))
    assert (len(made), made.shape) == (7, (1, 5, 7))


@pytest.mark.parametrize(
    ("images", "labels", "told"),
    [
        (torch.zeros(3, 1, 2, 2), torch.zeros(3, dtype=torch.int64), "uint8"),
        (torch.zeros(3, 2, 2, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64), r"\(3, 2, 2\)"),
        (torch.zeros(0, 1, 2, 2, dtype=torch.uint8), torch.zeros(0, dtype=torch.int64), "n > 0"),
        (torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64), "labels for 3 images"),
        (torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.zeros(3), "int64"),
        (torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, 1, 2]), "from 0 to 2, but there are 2"),
        (torch.zeros(3, 1, 2, 2, dtype=torch.uint8), torch.tensor([0, -1, 1]), "from -1 to 1"),
    ],
)
def test_a_set_refuses_what_is_no_set(images: torch.Tensor, labels: torch.Tensor, told: str) -> None:
    with pytest.raises(UserError, match=told):
        ImageSet(images=images, labels=labels, classes=("a", "b"), name="mine")


def test_parts_of_unlike_pictures_are_refused() -> None:
    train, odd = made_set(6), made_set(6, shape=(1, 7, 5))
    with pytest.raises(UserError, match="another image size"):
        Splits(train=train, validation=train, test=odd)
    with pytest.raises(UserError, match="other classes"):
        Splits(train=train, validation=made_set(6, classes=2), test=train)


def test_parts_share_their_shape_and_tell_all_that_was_skipped() -> None:
    parts = [made_set(6), made_set(4), made_set(5)]
    for part, path in zip(parts, "abc", strict=True):
        object.__setattr__(part, "skipped", ((path, "why"),))
    splits = Splits(train=parts[0], validation=parts[1], test=parts[2])
    assert splits.shape == (1, 5, 7) and splits.classes == parts[0].classes
    assert [path for path, _ in splits.skipped] == ["a", "b", "c"]


@given(labels=Labels, share=st.floats(0, 1), seed=st.integers(0, 9))
def test_a_draw_keeps_the_shares_of_the_classes(labels: torch.Tensor, share: float, seed: int) -> None:
    count = round(share * len(labels))
    drawn = stratified(labels, count, seed)
    assert len(drawn) == count and drawn.tolist() == sorted(set(drawn.tolist()))
    assert torch.equal(drawn, stratified(labels, count, seed))
    for label in range(5):
        exact = count * (labels == label).sum().item() / len(labels)
        assert abs((labels[drawn] == label).sum().item() - exact) < 1 + 1e-9  # whole pictures


@given(labels=Labels, share=st.floats(0.01, 0.99))
def test_a_draw_may_have_to_leave_one_of_every_class(labels: torch.Tensor, share: float) -> None:
    wanted = max(1, round(share * len(labels)))
    drawn = stratified(labels, wanted, 0, leave=1)
    spare = len(labels) - len(set(labels.tolist()))
    assert len(drawn) == min(wanted, spare)
    left = set(range(len(labels))) - set(drawn.tolist())
    assert {labels[row].item() for row in left} == set(labels.tolist())


def test_another_seed_draws_others() -> None:
    labels = torch.arange(200) % 4
    assert not torch.equal(stratified(labels, 40, 0), stratified(labels, 40, 1))


def test_carving_parts_a_set_in_two_and_keeps_the_order() -> None:
    made = made_set(40, classes=4)
    rest, part = carve(made, 0.25, 3, "part")
    assert (len(rest), len(part), part.name, rest.name) == (30, 10, "part", "made")
    assert not rows_of(rest.images) & rows_of(part.images)
    assert rows_of(rest.images) | rows_of(part.images) == rows_of(made.images)
    place = {image.numpy().tobytes(): row for row, image in enumerate(made.images)}
    for one in (rest, part):
        rows = [place[image.numpy().tobytes()] for image in one.images]
        assert rows == sorted(rows)
        assert torch.equal(one.labels, made.labels[rows])


def test_what_was_skipped_is_told_once() -> None:
    made = made_set(12)
    object.__setattr__(made, "skipped", (("a.png", "broken"),))
    parts = as_parts({"all": made}, "mine", 0)
    assert parts.train.skipped == made.skipped and parts.test.skipped == ()
    assert "test (20%, seed 0)" in parts.test.name


def test_nothing_can_be_carved_where_every_class_has_one_picture() -> None:
    with pytest.raises(UserError, match="no class has two pictures"):
        carve(made_set(3), 0.5, 0, "part")


def test_a_few_may_be_taken() -> None:
    made = made_set(60, classes=3)
    few = made.take(12)
    assert len(few) == 12 and few.labels.bincount().tolist() == [4, 4, 4]
    assert rows_of(few.images) <= rows_of(made.images) and "12 of 60" in few.name
    assert torch.equal(few.images, made.take(12).images)
    assert not torch.equal(few.images, made.take(12, seed=1).images)
    assert made.take(61) is made
    with pytest.raises(UserError, match="at least one"):
        made.take(0)


def test_more_than_memory_allows_is_refused() -> None:
    check_memory(MAX_GIB * 2**10, (1, 2**10, 2**10), "mine")
    with pytest.raises(UserError, match=rf"mine: {MAX_GIB * 2**10 + 1} pictures .* {MAX_GIB} are allowed; give a sm"):
        check_memory(MAX_GIB * 2**10 + 1, (1, 2**10, 2**10), "mine")


def test_what_is_skipped_is_counted_and_the_first_named() -> None:
    assert describe_skipped(()) is None
    assert describe_skipped((("a", "why"),)) == "skipped 1 file that can't be read: a (why)"
    many = tuple((f"{number}.png", "broken") for number in range(5))
    line = describe_skipped(many, 2)
    assert line is not None and line.startswith("skipped 5 files") and line.endswith("1.png (broken); and 3 more")
