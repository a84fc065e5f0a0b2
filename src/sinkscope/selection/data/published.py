"""Published pictures that are on the machine already: Fashion-MNIST from Debian's package, the digits of scikit-learn.

    load_images("fashion-mnist")             # after: apt install dataset-fashion-mnist
    load_images("fashion-mnist:FOLDER")      # the same four .idx-ubyte.gz files elsewhere
    load_images("digits")

Fashion-MNIST is 60,000 and 10,000 grey pictures of clothes, 28 x 28, ten classes. Clothes fill the middle of a black
frame: a selector that looks at nothing but the place of a patch does well here, so compare with one that draws at
random.

The digits are 1,797 grey pictures of 8 x 8 in 17 shades, ten classes, and need no download. At this size a patch of 2 x
2 leaves 16 tokens, and 20 % of the pictures are 359, so an accuracy is known to about 2 points. Nobody's test part is
published; ours is drawn by seed.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import torch

from sinkscope.errors import UserError
from sinkscope.selection.data.images import MAX_GIB, ImageSet
from sinkscope.selection.data.reading import resized
from sinkscope.selection.data.sources import Parts, Source, as_parts, source

FOLDER = Path("/usr/share/datasets/fashion-mnist")
CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
_FILES = {"train": "train", "test": "t10k"}
_SHADES = 16
"""The highest level of the digits, which becomes 255"""
_BYTES = 8
"""The kind of number in idx files"""
_CHUNK = 1 << 20
_REFETCH = "fetch the file again"


def default_source() -> str:
    """Fashion-MNIST where Debian's package is installed, else the digits that come with scikit-learn."""
    return "fashion-mnist" if not _missing(FOLDER) else "digits"


def about_default() -> str:
    """One line: which source is the default, why, and how to get others."""
    if default_source() == "fashion-mnist":
        return "no data were named: Fashion-MNIST is taken, which is installed here; --data names others"
    return (
        "no data were named, and Fashion-MNIST is not installed: the digits that come with scikit-learn are taken "
        "(8 x 8, an easier task); for Fashion-MNIST, apt install dataset-fashion-mnist, then --data fashion-mnist"
    )


@source("digits")
@dataclass(frozen=True)
class Digits(Source):
    def read(self) -> Parts:
        try:
            from sklearn.datasets import load_digits
        except ImportError as error:
            raise UserError("digits come with scikit-learn: pip install 'sinkscope[vision]'") from error
        found = load_digits()
        shades = torch.from_numpy(found.images)
        whole = ImageSet(
            images=resized((shades * 255 / _SHADES).round().to(torch.uint8), self.preprocessing, self.title),
            labels=torch.from_numpy(found.target).to(torch.int64),
            classes=tuple(str(digit) for digit in found.target_names),
            name=self.title,
        )
        return as_parts({"all": whole}, self.title, self.seed)


@source("fashion-mnist")
@dataclass(frozen=True)
class FashionMnist(Source):
    takes = "FOLDER"

    def read(self) -> Parts:
        folder = Path(self.where).expanduser() if self.where else FOLDER
        missing = _missing(folder)
        if missing:
            raise UserError(
                f"Fashion-MNIST: {missing[0]} is missing; apt install dataset-fashion-mnist, or name another folder "
                "with the four files: fashion-mnist:FOLDER"
            )
        return Parts(train=self._part(folder, "train"), test=self._part(folder, "test"))

    def _part(self, folder: Path, part: str) -> ImageSet:
        pictures, path = (folder / f"{_FILES[part]}-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1"))
        images, labels = read_idx(pictures, 3), read_idx(path, 1)
        if len(labels) != len(images) or int(labels.max()) >= len(CLASSES):
            raise UserError(
                f"{path}: wanted {len(images)} labels below {len(CLASSES)}, got {len(labels)} up to "
                f"{int(labels.max())}; fetch the files again"
            )
        name = f"{self.title}, {part}"
        images = resized(images, self.preprocessing, name)
        return ImageSet(images=images, labels=labels.to(torch.int64), classes=CLASSES, name=name)


def _missing(folder: Path) -> list[Path]:
    """Which of the four files are not there."""
    kinds = ("images-idx3", "labels-idx1")
    paths = [folder / f"{start}-{kind}-ubyte.gz" for start in _FILES.values() for kind in kinds]
    return [path for path in paths if not path.is_file()]


def read_idx(path: Path, dimensions: int) -> torch.Tensor:
    """The uint8 numbers of a gzipped idx file, the format of MNIST and its relatives.

    Four bytes (0, 0, kind of number, dimensions), each dimension as four bytes, big end first, then the numbers. Only
    bytes (kind 8) occur here. Raises `UserError` for a file that is missing, damaged, truncated, too large or of
    another format.
    """
    try:
        with gzip.open(path) as stream:
            start = stream.read(4)
            if start != bytes((0, 0, _BYTES, dimensions)):
                raise UserError(
                    f"{path}: no idx file of bytes in {dimensions} dimensions (begins with {start.hex()}); {_REFETCH}"
                )
            lengths = struct.unpack(f">{dimensions}I", stream.read(4 * dimensions))
            wanted = math.prod(lengths)
            if not 0 < wanted <= MAX_GIB * 2**30:
                raise UserError(f"{path}: its header says {lengths}: nothing, or more than {MAX_GIB} GiB; {_REFETCH}")
            # All that is left, where gzip checks its sum; piece by piece and no further than a piece beyond what is
            # wanted, so that a header that promises too much takes no memory.
            content = bytearray()
            while len(content) <= wanted and (piece := stream.read(_CHUNK)):
                content += piece
    except (OSError, EOFError, zlib.error, struct.error) as error:
        raise UserError(f"{path}: missing, damaged or truncated ({error}); {_REFETCH}") from error
    if len(content) != wanted:
        found = "more" if len(content) > wanted else f"only {len(content)}"
        raise UserError(f"{path}: its header says {wanted} bytes, but there are {found}; {_REFETCH}")
    return torch.frombuffer(content, dtype=torch.uint8).reshape(lengths)
