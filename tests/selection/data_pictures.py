"""Pictures made up for the tests of image data, and what must come of them."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from sinkscope.selection.data import ImageSet

Bytes = NDArray[np.uint8]


def made_bytes(*shape: int) -> Bytes:
    """Fresh random pixels, (row, column) or (row, column, 3)."""
    return torch.randint(0, 256, shape, dtype=torch.uint8).numpy()


def made_set(count: int, classes: int = 3, shape: tuple[int, int, int] = (1, 5, 7)) -> ImageSet:
    """Random pictures, the classes in turn."""
    return ImageSet(
        images=torch.randint(0, 256, (count, *shape), dtype=torch.uint8),
        labels=torch.arange(count) % classes,
        classes=tuple(f"class {one}" for one in range(classes)),
        name="made",
    )


def write_class(folder: Path, names: Iterable[str], shape: Sequence[int] = (5, 7)) -> dict[str, Bytes]:
    """Random PNG files in a folder, and their pixels by file name."""
    folder.mkdir(parents=True, exist_ok=True)
    pixels = {name: made_bytes(*shape) for name in names}
    for name, array in pixels.items():
        Image.fromarray(array).save(folder / name)
    return pixels


def as_images(arrays: Iterable[Bytes]) -> torch.Tensor:
    """(n, channel, row, column) of arrays (row, column) or (row, column, 3)."""
    return torch.stack(
        [torch.from_numpy(array if array.ndim == 3 else array[..., None]).permute(2, 0, 1) for array in arrays]
    )


def rows_of(images: torch.Tensor) -> set[bytes]:
    """The pictures as things that can be looked up."""
    return {image.numpy().tobytes() for image in images}
