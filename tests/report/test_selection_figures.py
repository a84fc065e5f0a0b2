"""Maps of kept patches, bars of agreement: what stands in them is what was given, in pixels and in words."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from report_samples import caption_of, figure_of, legend_labels, settings_of
from transformers import ViTConfig, ViTForImageClassification

from sinkscope.errors import UserError
from sinkscope.report import selection
from sinkscope.report.figures import FORMATS, write_figure
from sinkscope.report.selection.accuracy import model_title
from sinkscope.report.selection.kept import RIGHT, WRONG
from sinkscope.selection import SelectiveViT, wrap
from sinkscope.selection.agreement import Agreement
from sinkscope.selection.data import ImageSet

GRID, ROWS, COLUMNS = (2, 3), 9, 17
"""Patches of 4 x 5 pixels, with a row and two columns to spare"""
CLASSES = ("ankle boot", "bag", "coat$", "line\nbreak")


def pictures(count: int, channels: int = 1) -> ImageSet:
    return ImageSet(
        images=torch.randint(256, (count, channels, ROWS, COLUMNS), dtype=torch.uint8),
        labels=torch.arange(count) % len(CLASSES),
        classes=CLASSES,
        name="made",
    )


def choice(
    data: ImageSet, *, way: str = "gates", alpha: float = 0.5, wrong: tuple[int, ...] = ()
) -> selection.PatchChoice:
    """Random patches; right but for some pictures."""
    predicted = data.labels.clone()
    predicted[list(wrong)] = (predicted[list(wrong)] + 1) % len(CLASSES)
    return selection.PatchChoice(way=way, alpha=alpha, kept=torch.rand(len(data), 6) < 0.5, predicted=predicted)


def shown(ax: Axes) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    [image] = ax.get_images()
    return np.asarray(image.get_array(), dtype=np.float64)


def collection(ax: Axes, gid: str) -> LineCollection | PolyCollection:
    [found] = [one for one in ax.collections if one.get_gid() == gid]
    assert isinstance(found, LineCollection | PolyCollection)
    return found


def test_kept_patches_are_clear_and_dropped_ones_pale_and_hatched() -> None:
    [image], kept = pictures(1).images, torch.tensor([True, False, True, False, False, True])
    ax = selection.kept_map(image, kept, GRID)
    plain, drawn = image[0].numpy() / 255, shown(ax)
    for patch, stays in enumerate(kept.tolist()):
        rows, columns = (slice(4 * (patch // 3), 4 * (patch // 3) + 4), slice(5 * (patch % 3), 5 * (patch % 3) + 5))
        if stays:
            np.testing.assert_array_equal(drawn[rows, columns], plain[rows, columns])
        else:
            assert drawn[rows, columns].min() > 0.7  # paler than two thirds white, whatever was there
            assert np.ptp(drawn[rows, columns]) == pytest.approx(0.23 * np.ptp(plain[rows, columns]))
    assert drawn[8].min() > 0.7 and drawn[:, 15:].min() > 0.7  # nobody sees what lies beyond the last patch
    corners = [path.get_extents().bounds for path in collection(ax, "dropped").get_paths()]
    assert corners == [(5, 0, 5, 4), (0, 4, 5, 4), (5, 4, 5, 4)]
    assert ax.get_xlim() == (0, COLUMNS) and ax.get_ylim() == (ROWS, 0)


def test_the_outline_parts_what_stays_from_what_does_not() -> None:
    ax = selection.kept_map(pictures(1).images[0], torch.tensor([True, True, False, False, True, False]), GRID)
    lines = {tuple(map(tuple, one.astype(int).tolist())) for one in collection(ax, "outline").get_segments()}  # type: ignore[union-attr]
    assert lines == {
        ((0, 0), (5, 0)), ((5, 0), (10, 0)), ((0, 4), (5, 4)), ((5, 8), (10, 8)),
        ((0, 0), (0, 4)), ((10, 0), (10, 4)), ((5, 4), (5, 8)), ((10, 4), (10, 8)),
    }  # fmt: skip
    assert len(collection(ax, "grid").get_paths()) == 3 + 4


def test_colours_become_grey_by_what_eyes_see() -> None:
    image = torch.zeros(3, ROWS, COLUMNS, dtype=torch.uint8)
    image[1] = 255
    drawn = shown(selection.kept_map(image, torch.ones(6, dtype=torch.bool), GRID))
    np.testing.assert_allclose(drawn[:8, :15], 0.587)
    image[:] = 255
    np.testing.assert_allclose(shown(selection.kept_map(image, torch.ones(6, dtype=torch.bool), GRID))[:8, :15], 1)


def test_a_picture_of_many_patches_takes_little_room(tmp_path: Path) -> None:
    """Twelve maps of 224 x 224 pixels that no compression makes smaller: at a page's pixels they took 1.4 MB."""
    images = torch.randint(256, (6, 3, 224, 224), dtype=torch.uint8)
    data = ImageSet(images=images, labels=torch.zeros(6, dtype=torch.int64), classes=("bag",), name="made")
    half = selection.PatchChoice(
        way="gates", alpha=0.5, kept=torch.arange(256).expand(6, -1) % 3 > 0, predicted=data.labels
    )
    write_figure(selection.kept_maps(data, [half], (16, 16)), tmp_path / "maps.svg")
    assert (tmp_path / "maps.svg").stat().st_size < 1_000_000


def test_words_say_what_each_map_was_taken_for_and_what_was_sent() -> None:
    data = pictures(4)
    whole = selection.PatchChoice(
        way="whole", alpha=1.0, kept=torch.ones(4, 6, dtype=torch.bool), predicted=data.labels
    )
    part = choice(data, wrong=(1, 2))
    figure = selection.kept_maps(data, [whole, part], GRID, title="a model", settings="chosen by gates")
    axes = np.array(figure.axes).reshape(4, 2)
    sent = part.kept.sum(-1).tolist()
    assert [ax.get_title(loc="left") for ax in axes[:, 1]] == [
        f"{RIGHT} ankle boot\n{sent[0]} of 6", f"{WRONG} coat$\n{sent[1]} of 6",
        f"{WRONG} line\\nbreak\n{sent[2]} of 6", f"{RIGHT} line\\nbreak\n{sent[3]} of 6",
    ]  # fmt: skip
    assert [ax.get_title(loc="left") for ax in axes[:2, 0]] == [f"{RIGHT} ankle boot\n6 of 6", f"{RIGHT} bag\n6 of 6"]
    assert [ax.get_ylabel() for ax in axes[:, 0]] == ["ankle boot", "bag", "coat$", "line\\nbreak"]
    heads = [text.get_text() for ax in axes[0] for text in ax.texts if text.get_gid() == "head"]
    assert heads == ["the whole", "share 0.5"]
    assert "chosen by gates; above a map" in caption_of(figure)
    for row in range(4):
        np.testing.assert_array_equal(shown(axes[row, 0])[:8, :15], data.images[row, 0, :8, :15].numpy() / 255)


def test_ways_are_named_where_there_are_several() -> None:
    data = pictures(1)
    figure = selection.kept_maps(data, [choice(data), choice(data, way="key-norm", alpha=0.25)], GRID)
    heads = [text.get_text() for ax in figure.axes for text in ax.texts if text.get_gid() == "head"]
    assert heads == ["gates\nshare 0.5", "key-norm\nshare 0.25"]


def test_right_and_wrong_differ_in_their_sign() -> None:
    """Not in colour alone, which is lost in print."""
    assert RIGHT != WRONG
    data = pictures(2)
    figure = selection.kept_maps(data, [choice(data, wrong=(1,))], GRID)
    assert [ax.get_title(loc="left")[0] for ax in figure.axes] == [RIGHT, WRONG]


def test_maps_of_other_pictures_are_refused() -> None:
    data = pictures(3)
    for wrong in ([], [choice(pictures(2))]):
        with pytest.raises(UserError, match="each of 3 pictures of 2 x 3"):
            selection.kept_maps(data, wrong, GRID)
    with pytest.raises(UserError, match="each of 3 pictures of 3 x 3"):
        selection.kept_maps(data, [choice(data)], (3, 3))


@pytest.fixture(scope="module")
def model() -> SelectiveViT:
    """Random weights."""
    settings: dict[str, Any] = {"num_labels": len(CLASSES), "initializer_range": 0.2, "num_channels": 1}
    config = ViTConfig(
        hidden_size=32, num_hidden_layers=4, num_attention_heads=4, intermediate_size=64, image_size=[8, 15],
        patch_size=[4, 5], **settings,
    )  # fmt: skip
    made = SelectiveViT(wrap(ViTForImageClassification(config)), gates=(1, 2), split=3)
    return made.eval()


def test_choices_are_the_models_own(model: SelectiveViT) -> None:
    data = ImageSet(
        images=torch.randint(256, (5, 1, 8, 15), dtype=torch.uint8), labels=torch.zeros(5, dtype=torch.long),
        classes=CLASSES, name="made",
    )  # fmt: skip
    whole, *rest = selection.choices(model, data, alphas=(0.3, 0.6), selectors=("gates", "random"), mode="soft")
    assert whole.way == "whole" and bool(whole.kept.all())
    assert [(one.way, one.alpha) for one in rest] == [
        ("gates", 0.3), ("gates", 0.6), ("random", 0.3), ("random", 0.6),
    ]  # fmt: skip
    for one in rest:
        mode = "soft" if one.way == "gates" else "exact"  # random patches have no threshold to be soft about
        picked = model(data.pixels(range(5)), one.alpha, selector=one.way, mode=mode)
        assert bool((picked.kept == one.kept).all())
        assert bool((picked.logits.argmax(-1) == one.predicted).all())
    assert rest[2].kept.sum(-1).tolist() == [2] * 5


@pytest.mark.parametrize(
    ("alphas", "selectors", "mode", "message"),
    [
        ((0.0,), ("gates",), None, r"alpha must lie in \(0, 1\]"),
        ((0.3, 0.3), ("gates",), None, "the alpha 0.3 is named twice"),
        ((0.3,), ("gates", "gates"), None, "the selector gates is named twice"),
        ((0.3,), ("moon",), None, "unknown selector 'moon'"),
        ((0.3,), ("gates",), "moon", "unknown mode 'moon'"),
    ],
)
def test_choices_refused(alphas: tuple[float, ...], selectors: tuple[str, ...], mode: str | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        selection.check_choices(alphas, selectors, mode)


def agreements() -> list[Agreement]:
    rng = np.random.default_rng()
    return [
        Agreement(
            gate=gate, other=other, correlation=float(rng.uniform(-1, 1)), overlap=float(rng.uniform()), chance=chance
        )
        for gate, chance in ((2, 0.55), (4, 0.5), (6, 0.6))
        for other in ("received-attention", "key-norm")
    ]


def test_bars_are_as_high_as_the_overlap_beside_chance() -> None:
    found = agreements()
    ax = selection.agreement_bars(found, title="a model", settings="share 0.3")
    bars = [one for one in ax.patches if isinstance(one, Rectangle)]
    heights = [one.get_height() for one in bars]
    assert heights == pytest.approx([0.55, 0.5, 0.6, *(found[place].overlap for place in (0, 2, 4, 1, 3, 5))])
    order = np.argsort([one.get_x() for one in bars])
    assert [int(one) for one in order] == [0, 3, 6, 1, 4, 7, 2, 5, 8]  # chance first, gate by gate
    edges = sorted((one.get_x(), one.get_x() + one.get_width()) for one in bars)
    assert all(first[1] < second[0] for first, second in pairwise(edges))
    words = [text.get_text() for text in ax.texts if text.get_gid() == "correlation"]
    assert words == [f"{found[place].correlation:+.2f}".replace("-", "−") for place in (0, 2, 4, 1, 3, 5)]
    assert legend_labels(ax) == ["chance", "received-attention", "key-norm"]
    assert [one.get_text() for one in ax.get_xticklabels()] == [f"gate before block {gate}" for gate in (2, 4, 6)]
    assert "share 0.3" in settings_of(ax) and "Spearman" in settings_of(ax)
    assert len({(to_rgb(one.get_facecolor()[:3]), one.get_hatch()) for one in bars}) == 3  # read in grey too


def test_bars_take_axes_and_refuse_what_is_said_twice() -> None:
    ax = Figure().subplots()
    assert selection.agreement_bars(agreements(), ax=ax) is ax
    for wrong in ([], agreements() + agreements()):
        with pytest.raises(UserError, match="every gate and way once"):
            selection.agreement_bars(wrong)


@pytest.mark.parametrize("ending", FORMATS)
def test_the_same_inputs_give_the_same_bytes(tmp_path: Path, ending: str) -> None:
    """Whatever the user has set, and no setting is changed."""
    data = pictures(2, channels=3)
    columns, bars = [choice(data, wrong=(1,)), choice(data, alpha=0.25)], agreements()

    def draw(name: str) -> list[bytes]:
        files = [tmp_path / f"{name}-{number}.{ending}" for number in range(2)]
        write_figure(selection.kept_maps(data, columns, GRID, title="a"), files[0])
        write_figure(figure_of(selection.agreement_bars(bars)), files[1])
        return [file.read_bytes() for file in files]

    once = draw("one")
    with mpl.rc_context({"svg.hashsalt": "other", "font.size": 23.0, "hatch.linewidth": 4.0, "axes.grid": True}):
        before = dict(mpl.rcParams)
        assert draw("two") == once
        assert dict(mpl.rcParams) == before


@pytest.mark.parametrize(
    ("name", "title"),
    [("digits", "digits"), ("/runs/d0/model", "d0/model"), (".", "."), ("runs/a\nb", "runs/a\\nb")],
)
def test_models_are_called_by_the_end_of_their_folder(name: str, title: str) -> None:
    assert model_title(name) == title
