"""How pictures are brought to what a network takes: resized, cut, and scaled.

    preprocessing = Preprocessing().at(64)                    # shorter side to 64, the middle cut out, in [-1, 1]
    preprocessing = Preprocessing.of_checkpoint(folder)       # as its preprocessor_config.json says

A checkpoint saw colours at one scale: DeiT and DINOv2 less ImageNet's mean over its deviation, ViT in [-1, 1]. At
another it sees other pictures, and says nothing of it. Pillow resizes, as in transformers' image processors.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from sinkscope.errors import UserError, refusing

FILE = "preprocessor_config.json"
_WHITE = 255
_BICUBIC = 3
_RESAMPLINGS = range(6)
"""Pillow's numbers of its filters."""


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """Resize, then cut, then (byte / 255 - mean) / std. Raises `UserError` for sizes and scales that are none."""

    resize: int | tuple[int, int] | None = None
    """Of the shorter side, or of rows and columns; None leaves pictures as they are"""
    crop: tuple[int, int] | None = None
    """Rows and columns that are cut from the middle"""
    resample: int = _BICUBIC
    """Pillow's number of the filter"""
    mean: tuple[float, ...] = (0.5,)
    std: tuple[float, ...] = (0.5,)
    """One for all channels, or one a channel"""

    def __post_init__(self) -> None:
        sides = [self.resize] if isinstance(self.resize, int) else [*(self.resize or ())]
        if any(side < 1 for side in (*sides, *(self.crop or ()))):
            raise UserError(f"size must be at least 1, the rows and columns of every picture; got {self.sizes}")
        if self.resample not in _RESAMPLINGS:
            raise UserError(f"resample must be the number of a filter of Pillow, 0 to 5; got {self.resample}")
        numbers = (*self.mean, *self.std)
        if len(self.mean) != len(self.std) or not all(map(math.isfinite, numbers)) or min(self.std) <= 0:
            raise UserError(f"a scale is a finite mean and std above 0, as many of each; got {self.mean}, {self.std}")

    def at(self, size: int | None) -> Preprocessing:
        """The same with the shorter side brought to `size` and the middle cut out; None changes nothing."""
        return self if size is None else replace(self, resize=size, crop=(size, size))

    @classmethod
    def of_checkpoint(cls, folder: Path) -> Preprocessing | None:
        """As a checkpoint's folder says; None where it says nothing. Raises `UserError` for what can't be followed.

        transformers reads the file, with the defaults of the image processor that it names; no code of theirs is run.
        """
        if not (folder / FILE).exists():
            return None
        from transformers import AutoImageProcessor

        with refusing(f"{folder / FILE} can't be read by transformers", "restore it, or remove it to take [-1, 1]"):
            found: Any = AutoImageProcessor.from_pretrained(str(folder), backend="pil", local_files_only=True)  # type: ignore[no-untyped-call]
        with refusing(f"{folder / FILE} can't be followed", "remove it to take pictures in [-1, 1]"):
            if not found.do_rescale or abs(found.rescale_factor * _WHITE - 1) > 1e-6:
                raise ValueError("bytes are taken as parts of 255 alone")
            return cls(
                resize=_resize(found.size) if found.do_resize else None,
                crop=_pair(found.crop_size) if getattr(found, "do_center_crop", False) else None,
                resample=int(found.resample),
                mean=_numbers(found.image_mean) if found.do_normalize else (0.0,),
                std=_numbers(found.image_std) if found.do_normalize else (1.0,),
            )

    def write(self, folder: Path) -> None:
        """Beside a network, as transformers' ViT or, where pictures are cut, BiT processor reads it."""
        size = None
        if self.resize is not None:
            size = _sides(self.resize) if isinstance(self.resize, tuple) else {"shortest_edge": self.resize}
        stated = {
            "image_processor_type": "BitImageProcessor",
            "do_resize": size is not None,
            **({} if size is None else {"size": size}),
            "resample": self.resample,
            "do_center_crop": self.crop is not None,
            **({} if self.crop is None else {"crop_size": _sides(self.crop)}),
            "do_rescale": True,
            "rescale_factor": 1 / _WHITE,
            "do_normalize": True,
            "image_mean": list(self.mean),
            "image_std": list(self.std),
        }
        (folder / FILE).write_text(json.dumps(stated, indent=1) + "\n", encoding="utf-8")

    @property
    def sizes(self) -> str:
        """In a few words."""
        return " then ".join(str(one) for one in (self.resize, self.crop) if one is not None)

    @property
    def shape(self) -> tuple[int, int] | None:
        """Rows and columns of what comes out; None where that depends on the picture."""
        return self.crop or (self.resize if isinstance(self.resize, tuple) else None)

    def resized(self, rows: int, columns: int) -> tuple[int, int]:
        """Rows and columns of a picture after resizing, before it is cut."""
        if isinstance(self.resize, tuple):
            return self.resize
        if self.resize is None:
            return rows, columns
        longer = int(self.resize * max(rows, columns) / min(rows, columns))
        return (self.resize, longer) if rows <= columns else (longer, self.resize)

    def pixels(self, images: torch.Tensor) -> torch.Tensor:
        """Bytes (..., channel, row, column) as float32 at this scale."""
        mean, std = self._scale(images)
        return images.float() / (_WHITE * std) - mean / std

    def bytes(self, pixels: torch.Tensor) -> torch.Tensor:
        """The inverse of `pixels`, rounded to the nearest byte; what lies outside is cut off."""
        mean, std = self._scale(pixels)
        return ((pixels * std + mean) * _WHITE).round().clamp(0, _WHITE).to(torch.uint8)

    def _scale(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and deviation, (channel, 1, 1)."""
        channels = images.shape[-3] if images.ndim > 2 else 1
        if len(self.mean) not in (1, channels):
            raise UserError(
                f"pictures of {channels} channel{'s' * (channels > 1)} can't be scaled by the means of "
                f"{len(self.mean)}; take colour pictures"
            )
        mean, std = (torch.tensor(one, device=images.device) for one in (self.mean, self.std))
        return (mean, std) if images.ndim < 3 else (mean[:, None, None], std[:, None, None])


def _resize(size: Any) -> int | tuple[int, int]:
    if size.shortest_edge is not None and size.longest_edge is None:
        return int(size.shortest_edge)
    return _pair(size)


def _pair(size: Any) -> tuple[int, int]:
    if size is None or size.height is None or size.width is None:
        raise ValueError(f"pictures are resized to a shorter side, or to rows and columns, not to {size}")
    return int(size.height), int(size.width)


def _sides(pair: tuple[int, int]) -> dict[str, int]:
    return {"height": pair[0], "width": pair[1]}


def _numbers(given: float | Sequence[float]) -> tuple[float, ...]:
    return (float(given),) if isinstance(given, int | float) else tuple(float(one) for one in given)
