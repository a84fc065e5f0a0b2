"""Watch a network's attention inside a `with` block, and leave no trace behind.

    with ss.watch(model) as watched:
        model.network(input_ids)
    watched.received          # (layer, batch, head, key), means over queries

Works for a `sinkscope` model, for any transformers network whose attention goes through transformers' attention
interface, and for any other module that calls `torch.nn.functional.scaled_dot_product_attention` (`calls`). Memory
grows with L, never with L x L, unless maps are asked for. On a CPU the default kernel computes the output along with
the statistics: equal to SDPA's to rounding, not to the bit; `kernel="two-pass"` keeps SDPA's output bit for bit and
costs more. A watched network belongs to one thread. A compiled network is watched too: inside the block it runs as it
is written, without compilation.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from sinkscope.attention.calls import sdpa_calls
from sinkscope.attention.cutting import compiler_loaded, cutting, uncompiled
from sinkscope.attention.function import NAME, observed
from sinkscope.attention.fused import kernels_for
from sinkscope.attention.kernels import KERNELS
from sinkscope.attention.spread import split_heads
from sinkscope.attention.statistics import Collect, Pass, PassStatistics
from sinkscope.errors import UserError
from sinkscope.families import Model, shape_of


class Watched:
    """What was seen: the statistics of the latest forward pass, and how many passes there were.

    `collect` may be changed between passes, to keep full maps of some steps only.
    """

    def __init__(self, network: nn.Module, collect: Collect) -> None:
        self._network = network
        self._shape = shape_of(network) if isinstance(network, PreTrainedModel) else None
        self.collect = collect
        self.passes = 0
        self.names: Sequence[str] = ()
        """Of a module that is none of transformers': which of its modules made each layer of the latest pass."""
        self._last: PassStatistics | None = None
        self._compiler = compiler_loaded()

    @property
    def collect(self) -> Collect:
        """What is kept of each pass besides received attention; may be changed between passes."""
        return self._collect

    @collect.setter
    def collect(self, collect: Collect) -> None:
        if self._shape is not None:
            _check_maps("this model", self._shape.layers, self._shape.heads, collect)
        self._collect = collect

    @property
    def knows_padding(self) -> bool:
        """Whether the network is one of transformers', which say by `attention_mask` (batch, key) what is padding."""
        return self._shape is not None

    @property
    def last(self) -> PassStatistics:
        """Statistics of the latest forward pass."""
        if self._last is None:
            raise UserError("nothing was watched yet: run a forward pass inside the `with watch(...)` block")
        return self._last

    @property
    def received(self) -> torch.Tensor:
        """Received attention of the latest pass, (layer, batch, head, key), means over its real queries."""
        return self.last.received

    @property
    def no_key(self) -> torch.Tensor | None:
        """What queries of the latest pass paid to no key, (layer, batch, head), means over its real queries.

        It is the share of learned sinks (gpt-oss), and makes 1 with `received`. None for a network without them.
        """
        return self.last.no_key

    def take(self, statistics: PassStatistics | None) -> None:
        """Called at the end of every pass. Raises `UserError` for what can't be read as one map a layer and head."""
        name = type(self._network).__name__
        if statistics is None and compiler_loaded() and not self._compiler:
            raise UserError(f"{name} was compiled while it was watched; compile it before the `with watch(...)` block")
        if statistics is None and self._shape is None:
            raise UserError(
                f"{name} calls neither torch.nn.functional.scaled_dot_product_attention nor flex_attention, so its "
                "attention can't be seen; let its modules call one of them, and watch the module itself where this one "
                "was traced or exported from it"
            )
        if statistics is None:
            raise UserError(
                f"the attention of {name} does not use transformers' attention interface, so it can't be watched; "
                "use a model class that supports attn_implementation='sdpa'"
            )
        calls = len(statistics.received)
        if self._shape is None:
            _check_maps("this module", calls, statistics.received.shape[2], self._collect)
        if self._shape is not None and calls > self._shape.layers:
            raise UserError(
                f"{name} computed attention {calls} times in one pass and has {self._shape.layers} layers: several "
                "maps make a layer's output (a difference of two, cross-attention, a second stack, layers run again), "
                "and none of them is the layer's; watch a model with one attention a layer"
            )
        if not bool(statistics.finite.all()):
            first = int(statistics.finite.logical_not().nonzero()[0])
            raise not_finite(self._network, f"the attention of layer {first}")
        self._last = statistics
        self.passes += 1


@contextmanager
def watch(
    model: Model | nn.Module,
    collect: Collect | None = None,
    *,
    kernel: str | None = None,
    passes: Sequence[nn.Module] | None = None,
) -> Iterator[Watched]:
    """Observe every forward pass of `model` made inside the block.

    model: a sinkscope model, a network of transformers, or a module that calls PyTorch's attention function (`calls`).
    collect: what to keep besides received attention. kernel: "one-pass", "two-pass" or "fused" (see
        `attention.kernels`); by default the fastest one for the device. passes: the modules whose call is a pass; by
        default the network and its body, else parts that are called by themselves, single blocks for instance. Raises
        `UserError` for an unknown kernel or one that the device does not have, layers or heads that are not there, a
        network whose attention can't be seen or gathered from other processes (`spread`), and one that is watched
        already; in the pass, for attention that is not finite.
    """
    network: nn.Module = model.network if isinstance(model, Model) else model
    network = getattr(network, "_orig_mod", network)  # what torch.compile was given
    split = split_heads(network)
    collect = collect or Collect()
    kernel = _usable(kernel, next((one.device for one in network.parameters()), torch.device("cpu")))
    modules = list(network.modules())
    if any(module in observed for module in modules):
        raise UserError("this network is being watched already; use the outer `with watch(...)` block")
    watched, current = Watched(network, collect), Pass(kernel, split)
    # The body may be called by itself, and so may its stacks; where there is no body, it is the network.
    body = getattr(network, "base_model", network)
    stacks = [getattr(body, name, None) for name in ("encoder", "decoder")]
    outer = dict.fromkeys(filter(None, (network, body, *stacks))) if passes is None else passes
    attending = _through_transformers(network) if isinstance(network, PreTrainedModel) else sdpa_calls(network)
    hooks: list[RemovableHandle] = []
    try:
        with attending as names, uncompiled():
            watched.names = names
            observed.update(dict.fromkeys(modules, current))
            hooks += _follow(outer, watched, current)
            yield watched
    finally:
        for module in modules:
            observed.pop(module, None)
        for hook in hooks:
            hook.remove()


def _usable(kernel: str | None, device: torch.device) -> str:
    """A kernel that runs on a device, by default the fastest."""
    there = kernels_for(device)
    if kernel is not None and kernel not in KERNELS:
        raise UserError(f"unknown attention kernel {kernel!r}; choose one of {', '.join(KERNELS)}")
    if kernel is not None and kernel not in there:
        raise UserError(
            f"the attention kernel {kernel!r} needs an NVIDIA GPU from 2020 on (Ampere), Triton and a C compiler, and "
            f"does not run on {device.type} here; choose one of {', '.join(there)}"
        )
    return kernel or there[0]


@contextmanager
def _through_transformers(network: PreTrainedModel) -> Iterator[tuple[()]]:
    """Let the attention of a transformers network come by inside the block. Layers have no names of their own."""
    previous = network.config._attn_implementation
    try:
        if previous != NAME:
            network.set_attn_implementation(NAME)
        yield ()
    finally:
        if previous != NAME:
            network.set_attn_implementation(previous)


def _follow(outer: Iterable[nn.Module], watched: Watched, current: Pass) -> list[RemovableHandle]:
    """Begin and end passes with the outermost call of these modules."""
    depth = 0

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal depth
        depth += 1
        if depth == 1:
            mask = kwargs.get("attention_mask", args[1] if len(args) > 1 else None) if watched.knows_padding else None
            current.begin(watched.collect, mask if isinstance(mask, torch.Tensor) and mask.ndim == 2 else None)

    def after(module: nn.Module, _: object, output: object) -> None:
        nonlocal depth
        depth -= 1
        # None: the pass failed, and says so itself. A pass that looks for a fault is observed by nobody.
        if depth == 0 and output is not None and module in observed:
            watched.take(current.finish())

    return [
        hook
        for module in outer
        for hook in (
            module.register_forward_pre_hook(before, with_kwargs=True),
            module.register_forward_hook(after, always_call=True),
        )
    ]


def _check_maps(who: str, layers: int, heads: int, collect: Collect) -> None:
    for kind, asked, there in (("layer", collect.map_layers, layers), ("head", collect.map_heads, heads)):
        absent = [index for index in asked if not 0 <= index < there]
        if absent:
            raise UserError(f"no {kind} {absent[0]}: {who} has {kind}s 0 to {there - 1}")


def not_finite(network: nn.Module, where: str) -> UserError:
    """The error for a pass whose numbers are not finite. where: the first place that was seen, or the result."""
    dtype = str(next((one.dtype for one in network.parameters()), torch.float32)).removeprefix("torch.")
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
        with unobserved(network), cutting(None):
            run()
    finally:
        for hook in hooks:
            hook.remove()
    return found[0] if found else None


@contextmanager
def unobserved(network: PreTrainedModel) -> Iterator[None]:
    """Let nobody who watches the network see the passes made inside the block."""
    watching = {module: observed.pop(module) for module in network.modules() if module in observed}
    try:
        yield
    finally:
        observed.update(watching)
