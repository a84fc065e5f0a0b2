"""Whether numbers of a pass may be used: finite, and of all heads."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from transformers import PreTrainedModel

from sinkscope.attention.cutting import cutting
from sinkscope.attention.function import observed
from sinkscope.errors import UserError


def refuse_split_heads(network: PreTrainedModel) -> None:
    """Raise `UserError` for a network under tensor parallelism: each process would see, cut or drop by its own heads
    alone."""
    # Full sharding splits weights as well, but gathers them for every pass.
    gathers = any(type(module).__name__.startswith("FSDP") for module in network.modules())
    split = not gathers and any(_is_split(weight) for weight in network.parameters())
    if split or (getattr(network, "_tp_size", None) or 1) > 1:
        raise UserError(
            f"{type(network).__name__} is under tensor parallelism, where each process has some of the heads only; "
            "load it whole, or by layers with device_map"
        )


def _is_split(weight: torch.Tensor) -> bool:
    """Whether a weight is a `DTensor` of which each process has a part."""
    return any(one.is_shard() for one in getattr(weight, "placements", ()))


def not_finite(network: PreTrainedModel, where: str) -> UserError:
    """What is said of a pass whose numbers are not finite. where: the first place that was seen, or the result."""
    dtype = str(network.dtype).removeprefix("torch.")
    remedy = {
        "float16": "load the model with dtype='bfloat16' or 'float32', which have room for larger numbers",
        "bfloat16": "load the model with dtype='float32', and check its weights if that does not help",
    }.get(dtype, "its weights or its configuration are damaged; fetch them again")
    return UserError(f"{type(network).__name__} in {dtype} computes NaN or infinity, first seen in {where}: {remedy}")


def first_not_finite(network: PreTrainedModel, run: Callable[[], object]) -> str | None:
    """The first module that gives numbers which are not finite while `run` calls the network; None where none does.

    Costs a look at every module's output, so it is for passes that went wrong.
    """
    found: list[str] = []
    hooks = []
    for name, module in network.named_modules():
        if name and not any(module.children()):

            def look(_: nn.Module, __: object, output: object, name: str = name) -> None:
                if not found and isinstance(output, torch.Tensor) and not bool(output.isfinite().all()):
                    found.append(name)

            hooks.append(module.register_forward_hook(look))
    try:
        with _unobserved(network), cutting(None):
            run()
    finally:
        for hook in hooks:
            hook.remove()
    return found[0] if found else None


@contextmanager
def _unobserved(network: PreTrainedModel) -> Iterator[None]:
    """Let nobody who watches the network see the passes made inside the block."""
    watching = {module: observed.pop(module) for module in network.modules() if module in observed}
    try:
        yield
    finally:
        observed.update(watching)
