"""Decode picture files to bytes of one size and one number of channels.

Only formats that Pillow decodes itself are opened, never those that start another program (EPS). Of an animation the
first frame is taken, a camera's orientation mark is obeyed, transparent places are shown on white, 16 bits are cut to
8. Grey stays one channel as long as every picture is grey; a palette counts as colour.

What can't be read is skipped and named: `describe_skipped` says it in one line.
"""

from __future__ import annotations

import struct
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError

from sinkscope.errors import UserError
from sinkscope.selection.data.images import ImageSet, check_memory
from sinkscope.selection.data.preprocessing import Preprocessing

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
_GREY = ("1", "L", "LA", "La")
_DEEP = "I;16"
"""How the names of Pillow's 16-bit modes begin"""
_UNKNOWN_RANGE = ("I", "F")
_DAMAGE = (
    OSError, SyntaxError, ValueError, TypeError, IndexError, KeyError, EOFError, OverflowError, struct.error,
    zlib.error, Image.DecompressionBombError,
)  # fmt: skip
"""All that Pillow's decoders raise on damaged files"""

_MOST_PIXELS = 2**26
"""Of a picture that is resized before its middle is cut out"""

Skipped = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Picture:
    """A picture that is not decoded yet."""

    name: str
    """What it is called where it can't be read"""
    open: Callable[[], BinaryIO]
    label: int


def read_parts(
    parts: Mapping[str, Sequence[Picture]], classes: tuple[str, ...], preprocessing: Preprocessing, title: str
) -> dict[str, ImageSet]:
    """Decode every part.

    Where `preprocessing` brings pictures to no size, all must have one. Raises `UserError` for a picture
    of another size, for a part of which nothing can be read, and for too much memory.
    """
    every = [picture for pictures in parts.values() for picture in pictures]
    with warnings.catch_warnings():
        # Pillow warns of odd marks in files that it then reads all the same
        warnings.filterwarnings("ignore", module=r"PIL\.")
        shape = _common_shape(every, preprocessing, title)
        check_memory(len(every), shape, title)
        return {
            part: _read(pictures, classes, shape, preprocessing, f"{title}, {part}") for part, pictures in parts.items()
        }


def resized(images: torch.Tensor, preprocessing: Preprocessing, name: str) -> torch.Tensor:
    """Grey bytes (n, row, column) as (n, 1, row, column), resized and cut as files are."""
    rows, columns = images.shape[1:]
    shape = preprocessing.crop or preprocessing.resized(rows, columns)
    if preprocessing.resized(rows, columns) == shape == (rows, columns):
        return images.unsqueeze(1)
    check_memory(len(images), (1, *shape), name)
    out = torch.empty(len(images), 1, *shape, dtype=torch.uint8)
    for row, image in enumerate(images.numpy()):
        out[row] = _as_tensor(_fit(Image.fromarray(image), preprocessing))
    return out


def describe_skipped(skipped: Skipped, most: int = 3) -> str | None:
    """One line that counts what could not be read and names the first; None for nothing."""
    if not skipped:
        return None
    named = "; ".join(f"{path} ({reason})" for path, reason in skipped[:most])
    more = f"; and {len(skipped) - most} more" if len(skipped) > most else ""
    return f"skipped {len(skipped)} file{'s' * (len(skipped) > 1)} that can't be read: {named}{more}"


def _read(
    pictures: Sequence[Picture],
    classes: tuple[str, ...],
    shape: tuple[int, int, int],
    preprocessing: Preprocessing,
    name: str,
) -> ImageSet:
    images = torch.empty(len(pictures), *shape, dtype=torch.uint8)
    labels, skipped = list[int](), list[tuple[str, str]]()
    for picture in pictures:
        decoded = _decode(picture, shape[0], preprocessing)
        if isinstance(decoded, str):
            skipped.append((picture.name, decoded))
            continue
        if decoded.shape != shape:
            raise UserError(
                f"{picture.name} has {decoded.shape[1]} x {decoded.shape[2]} pixels (rows x columns), those before it "
                f"{shape[1]} x {shape[2]}; give a size to bring all to one"
            )
        images[len(labels)] = decoded
        labels.append(picture.label)
    if not labels:
        raise UserError(f"{name}: nothing to read; {describe_skipped(tuple(skipped), 1) or 'it has no pictures'}")
    return ImageSet(
        images=images[: len(labels)], labels=torch.tensor(labels), classes=classes, name=name, skipped=tuple(skipped)
    )


def _common_shape(pictures: Sequence[Picture], preprocessing: Preprocessing, title: str) -> tuple[int, int, int]:
    """(channel, row, column): colour if any that can be read is, and the size asked for or that of the first."""
    colour = (
        _is_colour(picture) and isinstance(_decode(picture, 3, preprocessing), torch.Tensor) for picture in pictures
    )
    channels = 3 if any(colour) else 1
    if preprocessing.shape is not None:
        return channels, *preprocessing.shape
    reason = "it has no pictures"
    for picture in pictures:
        decoded = _decode(picture, channels, preprocessing)
        if not isinstance(decoded, str):
            _, rows, columns = decoded.shape
            return channels, rows, columns
        reason = f"{picture.name} ({decoded})"
    raise UserError(f"{title}: none of {len(pictures)} files can be read; the last: {reason}")


def _is_colour(picture: Picture) -> bool:
    try:
        with picture.open() as stream, Image.open(stream, formats=FORMATS) as image:
            return image.mode not in (*_GREY, *_UNKNOWN_RANGE) and not image.mode.startswith(_DEEP)
    except _DAMAGE:
        return False


def _decode(picture: Picture, channels: int, preprocessing: Preprocessing) -> torch.Tensor | str:
    """(channel, row, column) bytes, or the reason why the picture can't be read."""
    try:
        with picture.open() as stream, Image.open(stream, formats=FORMATS) as image:
            upright = ImageOps.exif_transpose(image)
            plain = _plain(upright, "RGB" if channels == 3 else "L")
            return _as_tensor(_fit(plain, preprocessing))
    except UnidentifiedImageError:
        return f"not a picture in {', '.join(FORMATS)}"
    except _DAMAGE as error:
        return " ".join(str(error).split())[:200] or type(error).__name__


def _plain(image: Image.Image, mode: str) -> Image.Image:
    """Eight bits a channel, without transparency."""
    if image.mode in _UNKNOWN_RANGE:
        raise ValueError("pixels of 32 bits, of which nobody says what is white")
    if image.mode.startswith(_DEEP):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert(mode)
    if image.has_transparency_data:
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image.convert("RGBA"))
    return image.convert(mode)


def _fit(image: Image.Image, preprocessing: Preprocessing) -> Image.Image:
    """Resized and cut; a picture smaller than the cut has black around it, as transformers has it."""
    rows, columns = preprocessing.resized(image.height, image.width)
    if rows * columns > _MOST_PIXELS:
        raise ValueError(f"so narrow that it would take {rows} x {columns} pixels before it is cut")
    if (rows, columns) != (image.height, image.width):
        image = image.resize((columns, rows), Image.Resampling(preprocessing.resample))
    if preprocessing.crop is None:
        return image
    high, wide = preprocessing.crop
    top, left = (rows - high) // 2, (columns - wide) // 2
    return image.crop((left, top, left + wide, top + high))


def _as_tensor(image: Image.Image) -> torch.Tensor:
    array = np.array(image)
    return torch.from_numpy(array).reshape(*array.shape[:2], -1).permute(2, 0, 1)
