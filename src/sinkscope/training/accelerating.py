"""Where and in which precision a training runs, by accelerate."""

from __future__ import annotations

import torch
from accelerate import Accelerator

from sinkscope.errors import UserError
from sinkscope.training.recipe import Precision


def accelerator_on(device: torch.device, precision: Precision = "float32") -> Accelerator:
    """An accelerator on this very device. Raises `UserError` where accelerate would take another, or can't train in
    that precision."""
    mixed = {"bfloat16": "bf16", "float32": "no"}[precision]
    try:
        accelerator = Accelerator(cpu=device.type == "cpu", mixed_precision=mixed)
    except ValueError as error:  # another precision or device was chosen in this process, or the device lacks bfloat16
        raise UserError(f"accelerate does not train in {precision} on {device} here: {error}") from error
    found = accelerator.device
    if found.type != device.type or (found.index or 0) != (device.index or 0):
        raise UserError(
            f"accelerate trains on {found} here, not on {device}; name that device, or choose a GPU by "
            "CUDA_VISIBLE_DEVICES"
        )
    return accelerator
