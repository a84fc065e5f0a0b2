"""Send one batch of pictures as a cell says, and see which of them are still classified rightly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from sinkscope.seeds import seed_from
from sinkscope.selection.budgets import count_kept
from sinkscope.selection.channels import seed_channels
from sinkscope.selection.data import ImageSet, normalised
from sinkscope.selection.digital import find_digital
from sinkscope.selection.grid.cells import Cell
from sinkscope.selection.model import SelectiveViT


@dataclass(frozen=True, eq=False, kw_only=True)
class Sent:
    """What came of some pictures, a number for each of them; None where it means nothing."""

    right: torch.Tensor
    """(picture,) boolean"""
    symbols: torch.Tensor
    """(picture,) complex symbols that were sent, or that a file might have taken"""
    share: torch.Tensor | None = None
    """(picture,) of the patches"""
    fits: torch.Tensor | None = None
    """(picture,) boolean: whether a file was small enough to be sent"""
    bits: torch.Tensor | None = None
    """(picture,) of that file"""


def send(model: SelectiveViT, data: ImageSet, chosen: torch.Tensor, cell: Cell) -> Sent:
    """Send the pictures with these numbers. Noise follows from the cell's seed and the first of the numbers."""
    return (_as_file if cell.digital else _selected)(model, data, chosen, cell)


def join(parts: Sequence[Sent]) -> Sent:
    """Several batches as one."""
    return Sent(
        right=torch.cat([part.right for part in parts]),
        symbols=torch.cat([part.symbols for part in parts]),
        share=_joined([part.share for part in parts]),
        fits=_joined([part.fits for part in parts]),
        bits=_joined([part.bits for part in parts]),
    )


def _joined(parts: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    there = [part for part in parts if part is not None]
    return torch.cat(there) if there else None


def symbols_of(model: SelectiveViT, alpha: float, rate: float) -> int:
    """Complex symbols a picture that a selection sends which keeps its budget exactly."""
    tokens = count_kept(alpha, model.backbone.patches) + model.backbone.prefix
    return tokens * model.codec.symbols(rate)


def _selected(model: SelectiveViT, data: ImageSet, chosen: torch.Tensor, cell: Cell) -> Sent:
    device = model.budget.all.device
    numbers = chosen.tolist()
    if cell.channel is not None and cell.seed is not None:
        seed_channels(_noise_seed(cell.seed, numbers[0]))
    picked = model(
        data.pixels(chosen).to(device), cell.alpha,
        mode=cell.mode, selector=cell.selector, link=cell.link, numbers=numbers,
    )  # fmt: skip
    right = picked.logits.argmax(-1).cpu() == data.labels[chosen]
    return Sent(right=right, symbols=picked.symbols.cpu(), share=picked.share.cpu())


def _as_file(model: SelectiveViT, data: ImageSet, chosen: torch.Tensor, cell: Cell) -> Sent:
    """The model sees all patches of what arrives, with neither codec nor noise."""
    assert cell.rate is not None and cell.snr is not None
    symbols = symbols_of(model, cell.alpha, cell.rate)
    arrived = find_digital(cell.way)(data.images[chosen].numpy(), symbols, cell.snr)
    pixels = normalised(torch.from_numpy(arrived.images)).to(model.budget.all.device)
    fits = torch.from_numpy(arrived.fits)
    right = (model(pixels, 1.0).logits.argmax(-1).cpu() == data.labels[chosen]) & fits
    return Sent(right=right, symbols=torch.full_like(chosen, symbols), fits=fits, bits=torch.from_numpy(arrived.bits))


def _noise_seed(seed: int, first: int) -> int:
    return seed_from(f"noise/{seed}/{first}")
