"""Fashion-MNIST from Debian's package: 60,000 and 10,000 grey pictures of clothes, 28 x 28, ten classes.

    load_images("fashion-mnist")             # after: apt install dataset-fashion-mnist
    load_images("fashion-mnist:FOLDER")      # the same four .idx-ubyte.gz files elsewhere

Clothes fill the middle of a black frame: a selector that looks at nothing but the place of a patch does well here, so
compare with one that draws at random.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from sinkscope.errors import UserError
from sinkscope.selection.data.base import Parts, Source
from sinkscope.selection.data.idx import read_idx
from sinkscope.selection.data.images import ImageSet
from sinkscope.selection.data.reading import resized
from sinkscope.selection.data.registry import source

FOLDER = Path("/usr/share/datasets/fashion-mnist")
CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
_FILES = {"train": "train", "test": "t10k"}


@source("fashion-mnist")
@dataclass(frozen=True)
class FashionMnist(Source):
    """The published training and test part."""

    takes = "FOLDER"

    def read(self) -> Parts:
        folder = Path(self.where).expanduser() if self.where else FOLDER
        missing = [path for path in _paths(folder) if not path.is_file()]
        if missing:
            raise UserError(
                f"Fashion-MNIST: {missing[0]} is missing; apt install dataset-fashion-mnist, or name another folder "
                "with the four files: fashion-mnist:FOLDER"
            )
        return Parts(train=self._part(folder, "train"), test=self._part(folder, "test"))

    def _part(self, folder: Path, part: str) -> ImageSet:
        images = read_idx(folder / f"{_FILES[part]}-images-idx3-ubyte.gz", 3)
        path = folder / f"{_FILES[part]}-labels-idx1-ubyte.gz"
        labels = read_idx(path, 1)
        if len(labels) != len(images) or int(labels.max()) >= len(CLASSES):
            raise UserError(
                f"{path}: wanted {len(images)} labels below {len(CLASSES)}, got {len(labels)} up to "
                f"{int(labels.max())}; fetch the files again"
            )
        name = f"{self.title}, {part}"
        return ImageSet(
            images=resized(images, self.size, name), labels=labels.to(torch.int64), classes=CLASSES, name=name
        )


def is_installed() -> bool:
    """Whether all four files of Debian's package are there."""
    return all(path.is_file() for path in _paths(FOLDER))


def _paths(folder: Path) -> list[Path]:
    kinds = ("images-idx3", "labels-idx1")
    return [folder / f"{start}-{kind}-ubyte.gz" for start in _FILES.values() for kind in kinds]
