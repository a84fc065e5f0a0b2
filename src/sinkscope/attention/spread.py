"""Networks that are spread: their heads over the processes of tensor parallelism, their layers over devices.

    heads = split_heads(network)                # None where every process has all heads
    heads.gather(own)                           # (batch, head, ...) of all processes

Under tensor parallelism a process computes the attention of some heads, as many as every other one, in the order of the
ranks. What is seen of them is gathered, so that every process knows all heads and comes to the same decisions; what is
cut is cut by each process in its own heads. Every process must make the same passes: one that stops leaves the others
waiting.

Costs: statistics go from process to process once a layer, received attention once more where keys are masked; never a
map, unless maps are asked for.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import distributed, nn
from transformers import PreTrainedModel

from sinkscope.attention.cutting import Cutter
from sinkscope.attention.given import Attention, Cut
from sinkscope.errors import UserError
from sinkscope.families import shape_of


@dataclass(frozen=True, kw_only=True, eq=False)
class SplitHeads:
    """How heads are split over `size` processes. heads, kv_heads: of the whole network. group: of the processes, None
    for all."""

    heads: int
    kv_heads: int
    rank: int
    size: int
    group: Any = None

    def of_layer(self, attention: Attention) -> "SplitHeads | None":
        """The same for one layer: None where this process has all of its heads. Raises `UserError` where it has another
        part of them than its share."""
        here, key_heads = attention.query.shape[1], attention.key.shape[1]
        if here == self.heads:
            return None
        if (here * self.size, key_heads * self.size) != (self.heads, self.kv_heads):
            raise UserError(
                f"a process has {here} heads and {key_heads} key heads of a layer, of {self.heads} and {self.kv_heads} "
                f"in all and {self.size} processes: heads that are not split evenly can't be gathered; load the "
                "network whole, or by layers with device_map"
            )
        return self

    def gather(self, own: torch.Tensor) -> torch.Tensor:
        """What belongs to the heads of this process, (batch, own head, ...), of all heads: (batch, head, ...)."""
        parts = [torch.empty_like(own, memory_format=torch.contiguous_format) for _ in range(self.size)]
        distributed.all_gather(parts, own.contiguous(), group=self.group)
        return torch.cat(parts, dim=1)

    def own(self, whole: torch.Tensor) -> torch.Tensor:
        """Of all heads, (batch, head, ...), those of this process."""
        share = whole.shape[1] // self.size
        return whole.narrow(1, self.rank * share, share)


@dataclass(frozen=True, eq=False)
class SpreadCutter:
    """A `Cutter` that is asked for all heads at once, on one device, wherever heads and layers are.

    What is to stand in for values is as the process and the layer have it.
    """

    decides: Cutter
    split: SplitHeads | None
    home: torch.device

    def weights(self, attention: Attention) -> torch.Tensor:
        return self.decides.weights(attention)

    @property
    def needs_received(self) -> bool:
        return self.decides.needs_received

    def cut(self, attention: Attention, received: Callable[[], torch.Tensor]) -> Cut | None:
        split = None if self.split is None else self.split.of_layer(attention)
        cut, there = self.decides.cut(attention, lambda: self._at_home(received())), attention.query.device
        if cut is None:
            return None
        return replace(
            cut,
            keys=(cut.keys if split is None else split.own(cut.keys)).to(there),
            queries=None if cut.queries is None else cut.queries.to(there),
            instead=None if cut.instead is None else cut.instead.to(there),
        )

    def on_layer_end(self, received: torch.Tensor | None, removed: torch.Tensor | None) -> None:
        self.decides.on_layer_end(
            None if received is None else self._at_home(received), None if removed is None else self._at_home(removed)
        )

    def _at_home(self, own: torch.Tensor) -> torch.Tensor:
        """What belongs to query heads, (batch, own head, ...), of all of them."""
        split = self.split is not None and own.shape[1] != self.split.heads
        return (self.split.gather(own) if split and self.split is not None else own).to(self.home)


def split_heads(network: nn.Module) -> SplitHeads | None:
    """How tensor parallelism splits the heads of a network; None without it.

    Raises `UserError` where they can't be gathered: heads that don't come out even, weights that are split in another
    way beside, modules that are none of transformers', layers that are split over processes.
    """
    split: list[Any] = [
        weight for name, weight in network.named_parameters() if "att" in name.lower() and _is_sharded(weight)
    ]
    size = getattr(network, "_tp_size", None) or 1
    # Full sharding splits weights as well, but gathers them for every pass.
    gathers = any(type(module).__name__.startswith("FSDP") for module in network.modules())
    stock = isinstance(network, PreTrainedModel)
    own: Any = (
        getattr(network, "_device_mesh", None) if stock else None
    )  # transformers': pipeline, full sharding, tensor parallelism
    name, pipeline = type(network).__name__, own is not None and own["pp"].size() > 1
    if size == 1 and not pipeline and (gathers or not split):
        return None
    meshes: Any = own if size > 1 or pipeline else split[0].device_mesh
    if pipeline or gathers or not stock or meshes.size() != max(meshes.shape):
        raise UserError(
            f"{name} is split over processes by layers, in several ways at once or is none of transformers' networks, "
            "so its heads can't be gathered; use tensor parallelism alone, or load it by layers with device_map"
        )
    assert isinstance(network, PreTrainedModel)
    shape, mesh = shape_of(network), meshes if meshes.ndim == 1 else meshes["tp"]
    odd = next((count for count in (shape.heads, shape.kv_heads) if count % mesh.size()), None)
    if split and odd is not None:
        raise UserError(
            f"{name} has {shape.heads} heads and {shape.kv_heads} key heads: {mesh.size()} processes of tensor "
            f"parallelism can't have as many of {odd} each; use a number of processes that divides both"
        )
    return SplitHeads(
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        rank=mesh.get_local_rank(),
        size=mesh.size(),
        group=mesh.get_group(),
    )


def refuse_split_heads(network: nn.Module, what: str) -> None:
    """Raise `UserError` for a network under tensor parallelism. what: that can't be done by a part of the heads."""
    if split_heads(network) is not None:
        raise UserError(
            f"{type(network).__name__} is under tensor parallelism, where each process has some of the heads only: "
            f"{what}; load it whole, or by layers with device_map"
        )


def _is_sharded(weight: Any) -> bool:
    """Whether a process has a part of a weight only: a `DTensor`, by its placements."""
    return any(one.is_shard() for one in getattr(weight, "placements", ()))
