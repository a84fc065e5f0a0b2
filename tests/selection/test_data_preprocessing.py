"""Pictures as a checkpoint wants them, against transformers' own image processors."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import BitImageProcessorPil, DeiTImageProcessorPil, ViTImageProcessorPil

from sinkscope.errors import UserError
from sinkscope.selection.data import Preprocessing, load_images

PROCESSORS: list[Any] = [
    ViTImageProcessorPil(size={"height": 12, "width": 10}),
    ViTImageProcessorPil(do_resize=False, do_normalize=False),
    DeiTImageProcessorPil(size={"height": 16, "width": 16}, crop_size={"height": 12, "width": 12}, resample=2),
    BitImageProcessorPil(size={"shortest_edge": 11}, crop_size={"height": 9, "width": 8}),
    BitImageProcessorPil(size={"shortest_edge": 6}, crop_size={"height": 9, "width": 8}, image_std=[0.2, 0.3, 0.4]),
]
"""One that squashes, one that leaves sizes, one that cuts, one of the shorter side, one whose cut is too large."""


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    generator = np.random.default_rng(20261129)
    for part in ("train", "test"):
        for name in ("a", "b"):
            (tmp_path / "data" / part / name).mkdir(parents=True)
            for number in range(4):
                pixels = generator.integers(0, 256, (21, 17, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "data" / part / name / f"{number}.png")
    return tmp_path / "data"


@pytest.mark.parametrize("processor", PROCESSORS)
def test_pictures_are_those_of_transformers(processor: Any, pictures: Path, tmp_path: Path) -> None:
    processor.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text('{"model_type": "vit"}')
    said = Preprocessing.of_checkpoint(tmp_path / "model")
    assert said is not None
    test = load_images(f"folder:{pictures}", preprocessing=said).test
    files = [pictures / "test" / name / f"{number}.png" for name in ("a", "b") for number in range(4)]
    wanted = torch.from_numpy(np.stack([processor(Image.open(file))["pixel_values"][0] for file in files]))
    # Two orders of float32 operations on numbers below 5, each of a relative error of 2^-24.
    torch.testing.assert_close(test.pixels(range(8)), wanted, rtol=0, atol=4e-6)
    said.write(tmp_path / "model")
    again = Preprocessing.of_checkpoint(tmp_path / "model")
    assert again == said


def test_a_checkpoint_may_say_nothing(tmp_path: Path) -> None:
    assert Preprocessing.of_checkpoint(tmp_path) is None


@pytest.mark.parametrize(
    ("stated", "told"),
    [
        ("[", "can't be read"),
        ("[]", "can't be read"),
        ({"image_processor_type": "Unheard"}, "can't be read"),
        ({"image_processor_type": "Own", "auto_map": {"AutoImageProcessor": "own.Own"}}, "can't be read"),
        ({"image_processor_type": "ViTImageProcessor", "do_rescale": False}, "parts of 255 alone"),
        ({"image_processor_type": "ViTImageProcessor", "size": {"longest_edge": 9}}, "shorter side"),
        ({"image_processor_type": "ViTImageProcessor", "image_std": [0.5, 0.5, 0]}, "std above 0"),
        ({"image_processor_type": "ViTImageProcessor", "image_mean": "grey"}, "can't be followed"),
    ],
)
def test_what_can_not_be_followed_is_refused(stated: Any, told: str, tmp_path: Path) -> None:
    content = stated if isinstance(stated, str) else json.dumps(stated)
    (tmp_path / "preprocessor_config.json").write_text(content)
    with pytest.raises(UserError, match=told) as refused:
        Preprocessing.of_checkpoint(tmp_path)
    assert "\n" not in str(refused.value)


def test_grey_pictures_have_no_three_means() -> None:
    with pytest.raises(UserError, match="1 channel can't be scaled by the means of 3; take colour"):
        load_images("digits", preprocessing=Preprocessing(mean=(0.4,) * 3, std=(0.2,) * 3)).test.pixels([0])
