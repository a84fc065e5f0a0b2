"""Whether the weights on disk are the weights that the network has: none missing, none left over, none of another
shape.

The headers are compared beforehand, under the names that transformers will give them (`check_stored`); what it merges
or splits on the way is left to its report after loading (`check_report`). Either way a weight without a place is an
error: it most often means that the configuration does not tell the whole truth about the model.

What was loaded is looked at once more (`check_values`, one pass without a copy): a network with one NaN computes
nothing else.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from sinkscope.errors import UserError
from sinkscope.families.base import Body
from sinkscope.families.checkpoint import Checkpoint
from sinkscope.families.stored import StoredTensor, common_dtype, float_dtype

_SHOWN = 5
_NOT_REAL = ("I", "U", "BOOL", "C")
"""How the names of dtypes begin that hold whole, complex or truth values."""


def check_stored(
    checkpoint: Checkpoint, body: Body, skeleton: PreTrainedModel, stored: Mapping[str, StoredTensor]
) -> None:
    """Compare names and shapes with the skeleton's. Raises `UserError` that names what does not fit."""
    if checkpoint.gguf is not None:
        return
    wanted = {name: tuple(weight.shape) for name, weight in skeleton.state_dict().items()}
    placed, merged = _names(body, skeleton, stored)
    # A tied weight may be left out of the file: the network takes the one it is tied to.
    absent = wanted.keys() - placed.keys() - set(skeleton.all_tied_weights_keys)
    left_out = (*merged, *(skeleton._keys_to_ignore_on_load_missing or ()))
    _refuse(checkpoint, body, "missing", _untolerated(absent, left_out))
    surplus = {placed[name] for name in placed.keys() - wanted.keys()}
    _refuse(checkpoint, body, "surplus", _untolerated(surplus, body.surplus))
    differing = [
        f"{stored_name} is {list(stored[stored_name].shape)}, wanted {list(wanted[name])}"
        for name, stored_name in placed.items()
        if name in wanted and stored[stored_name].shape != wanted[name]
    ]
    _refuse(checkpoint, body, "of another shape than config.json says", differing)
    floating = {name for name, weight in skeleton.named_parameters() if weight.is_floating_point()}
    unreal = [
        f"{stored_name} is {stored[stored_name].dtype}"
        for name, stored_name in placed.items()
        if name in floating and stored[stored_name].dtype.removeprefix("torch.").upper().startswith(_NOT_REAL)
    ]
    _refuse(checkpoint, body, "stored as whole or complex numbers, wanted real ones", unreal)


def check_report(checkpoint: Checkpoint, body: Body, report: Mapping[str, Any]) -> None:
    """Judge transformers' loading report. Raises `UserError` that names what does not fit."""
    _refuse(checkpoint, body, "missing", report["missing_keys"])
    _refuse(checkpoint, body, "surplus", _untolerated(report["unexpected_keys"], body.surplus))
    differing = [f"{name} is {list(found)}, wanted {list(wanted)}" for name, found, wanted in report["mismatched_keys"]]
    _refuse(checkpoint, body, "of another shape than config.json says", differing)
    if report["error_msgs"]:
        first = " ".join(str(report["error_msgs"][0]).split())
        raise UserError(
            f"{checkpoint.name}: the weights cannot be converted for {body.network_class.__name__}: {first}"
        )


def _names(body: Body, skeleton: PreTrainedModel, stored: Iterable[str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Names in the network -> stored names, by the family's renames or by transformers' own; and patterns of what
    transformers merges or splits."""
    if body.native_names:
        return {_renamed(name, body.renames): name for name in stored}, ()
    rules = get_model_conversion_mapping(skeleton)
    renames = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    merging = [rule for rule in rules if isinstance(rule, WeightConverter)]
    wanted, placed = skeleton.state_dict(), {}
    for name in stored:
        found, merged = rename_source_key(name, renames, merging, skeleton.base_model_prefix, wanted)
        if merged is None:
            placed[found] = name
    ends = [pattern.strip("^$").replace("\\1", "*") for rule in merging for pattern in rule.target_patterns]
    return placed, tuple(re.escape(end).replace(r"\*", ".*") for end in ends)


@torch.no_grad()
def check_values(checkpoint: Checkpoint, network: PreTrainedModel, stored: Mapping[str, StoredTensor]) -> None:
    """Raise `UserError` naming the first weight that holds what is no finite number. Buffers may hold minus infinity,
    as masks do."""
    weights = {name for name, _ in network.named_parameters()}
    for name, tensor in chain(network.named_parameters(), network.named_buffers()):
        if tensor.is_meta or not tensor.is_floating_point() or tensor.numel() == 0:
            continue
        own = tensor.to_local() if isinstance(tensor, DTensor) else tensor  # split over processes
        low, high = (float(one) for one in torch.aminmax(own))
        if math.isnan(low):  # as both ends are where one value is
            raise UserError(f"{checkpoint.name}: {name} holds NaN; the checkpoint is damaged, fetch it again")
        if high == math.inf or (low == -math.inf and name in weights):
            _refuse_infinite(checkpoint, name, tensor.dtype, float_dtype(common_dtype(stored)))


def _refuse_infinite(checkpoint: Checkpoint, name: str, dtype: torch.dtype, stored: torch.dtype) -> None:
    short, largest = str(dtype).removeprefix("torch."), torch.finfo(dtype).max
    if largest < torch.finfo(stored).max:
        wider = "float32" if dtype == torch.bfloat16 else "bfloat16 or float32"
        raise UserError(
            f"{checkpoint.name}: {name} holds values beyond {largest:g}, the largest of {short}; load it with "
            f"dtype={'float64' if dtype == torch.float32 else wider}"
        )
    raise UserError(f"{checkpoint.name}: {name} holds infinity; the checkpoint is damaged, fetch it again")


def _renamed(name: str, renames: Mapping[str, str]) -> str:
    for pattern, replacement in renames.items():
        changed, count = re.subn(pattern, replacement, name)
        if count:
            return changed
    return name


def _untolerated(names: Iterable[str], tolerated: Sequence[str]) -> list[str]:
    return [name for name in names if not any(re.search(pattern, name) for pattern in tolerated)]


def _refuse(checkpoint: Checkpoint, body: Body, fault: str, names: Iterable[str]) -> None:
    listed = sorted(names)
    if not listed:
        return
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    raise UserError(
        f"{checkpoint.name}: config.json and weights disagree for {body.network_class.__name__}: {len(listed)} "
        f"weights are {fault}: {', '.join(listed[:_SHOWN])}{more}"
    )
