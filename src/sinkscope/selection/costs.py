"""What selection saves: operations, counted, and seconds, measured.

    flops(model, 0.25)                             # Costs(camera=..., server=..., whole=...) of one picture
    latency(model, images, 0.25)                   # median seconds of a batch

Operations are what `torch.utils.flop_counter` counts while pictures really run, one at a time, with what a gate drops
really gone: two for every multiplication with its addition (many papers on vision transformers count one and call it
a FLOP too). While they are counted attention runs as plain matrix products, since the counter passes over PyTorch's
fused attention on a CPU and over its fused encoder layer.

Where it misleads: only matrix products and convolutions are counted. Norms, softmax and the sorting out of patches cost
nothing here and time in truth, so seconds fall by less than operations, the more so in small models. A selector that
looks at attention costs what the gates cost here; what the look itself takes depends on how it is done.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from sinkscope.errors import UserError
from sinkscope.selection.backbones import unfused
from sinkscope.selection.link import Link
from sinkscope.selection.model import SelectiveViT


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Operations of one picture."""

    camera: float
    """Before the wire, gates and the codec's encoder included"""
    server: float
    """Behind it, the codec's decoder included"""
    whole: float
    """Of the backbone as it stands, without gates, wire and budget token"""

    @property
    def total(self) -> float:
        return self.camera + self.server

    @property
    def share(self) -> float:
        return self.total / self.whole


def flops(
    model: SelectiveViT,
    alpha: float,
    link: Link | None = None,
    *,
    mode: str = "exact",
    images: torch.Tensor | None = None,
) -> Costs:
    """Operations at batch 1 at a share of the patches; link None hands the tokens over without a codec.

    images: (picture, channel, row, column), the mean over which is given. A black picture by default, which is enough
    for the mode "exact", where all pictures cost the same. Raises `UserError` for what the model refuses.
    """
    if images is None:
        images = torch.zeros(1, *model.backbone.image_shape, device=model.budget.all.device)
    model.backbone.check_images(images)
    sides = [_sides(model, image, alpha, link, mode) for image in torch.split(images, 1)]
    with torch.no_grad(), unfused(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model.backbone.network(images[:1])
    camera, server = (fmean(side) for side in zip(*sides, strict=True))
    return Costs(camera=camera, server=server, whole=float(counter.get_total_flops()))


def latency(
    model: SelectiveViT,
    images: torch.Tensor,
    alpha: float | Sequence[float] | torch.Tensor,
    repeats: int = 9,
    *,
    link: Link | None = None,
) -> float:
    """Median seconds of a batch (picture, channel, row, column), both sides together, after one run to warm up.

    alpha: one share, or one a picture: then rows of unequal length are packed (`removal`). Other work on the machine
    counts too. Raises `UserError` for what the model refuses.
    """
    return median(taking_turns({"": lambda: model(images, alpha, link=link)}, repeats, device=images.device)[""])


def taking_turns(
    ways: Mapping[str, Callable[[], object]],
    repeats: int,
    *,
    device: torch.device,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of every way, run in turns after one run each to warm up; so what slows the machine slows all."""
    if repeats < 1:
        raise UserError(f"repeats must be at least 1, got {repeats}")
    for call in ways.values():
        call()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, call in ways.items():
            _wait(device)
            start = clock()
            call()
            _wait(device)
            seconds[name].append(clock() - start)
    return seconds


def _sides(model: SelectiveViT, image: torch.Tensor, alpha: float, link: Link | None, mode: str) -> tuple[float, float]:
    """Camera and server. The server begins with the decoder, or without a link with the first block behind the wire."""
    begins = model.backbone.blocks[model.split] if link is None else model.codec.decoder
    before: list[int] = []
    with unfused(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        hook = begins.register_forward_pre_hook(lambda *_: before.append(counter.get_total_flops()))
        try:
            model(image, alpha, mode=mode, link=link)
        finally:
            hook.remove()
    return float(before[0]), float(counter.get_total_flops() - before[0])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
