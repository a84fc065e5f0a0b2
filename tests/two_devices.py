"""Two devices on a machine that has none: tensors that say they are on cuda:0 or cuda:1 and compute on the CPU.

    with devices():
        spread(network)          # layers of a network in turn on both

As on real ones, an operation between the two is an error, and so is one with a CPU tensor that is no single number.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

DEVICES = (torch.device("cuda:0"), torch.device("cuda:1"))
_MOVING = ("to", "cpu", "cuda", "__get__", "__set__")
"""What torch itself splits into operations; of all others some ask a real device something before they compute."""
_INDEXING = ("__getitem__", "__setitem__", "index", "index_put", "index_put_", "_index_put_impl_")
"""What takes indices and new values from the CPU too."""


class Placed(torch.Tensor):
    """A CPU tensor that says it is elsewhere."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor, device: torch.device) -> "Placed":
        made: Placed = torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            device=device,
        )  # fmt: skip
        made.held = inner
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ not in _MOVING:
            return _run(func, args, kwargs or {})
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return _run(func, args, kwargs or {})


def _run(func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute on the CPU; the result is where the arguments are, or where it is asked to be."""
    given = [one for one in tree_flatten((args, kwargs))[0] if isinstance(one, torch.Tensor)]
    places = {one.device for one in given if isinstance(one, Placed)}
    name = getattr(func, "__name__", "").split(".")[0]
    assert name not in ("numpy", "__array__"), "a tensor of a device is no array"
    if name in ("copy_", "__setitem__"):  # values come from anywhere
        places = {args[0].device} if isinstance(args[0], Placed) else set()
    elif name not in ("_to_copy", *_INDEXING):
        places |= {one.device for one in given if one.ndim > 0 and not isinstance(one, Placed)}
    if len(places) > 1:
        raise RuntimeError(f"{func} of tensors on {sorted(map(str, places))}")
    asked = kwargs.get("device")
    target = torch.device(asked) if asked is not None else next(iter(places), torch.device("cpu"))
    kwargs = kwargs if asked is None else {**kwargs, "device": torch.device("cpu")}
    kwargs.pop("pin_memory", None)
    inner, named = tree_map(lambda one: one.held if isinstance(one, Placed) else one, (args, kwargs))
    found = func(*inner, **named)
    if found is None or (given and any(found is one for one in tree_flatten(inner)[0])):  # in place
        return args[0] if found is not None else None
    return tree_map(
        lambda one: Placed(one, target) if isinstance(one, torch.Tensor) and target.type == "cuda" else one, found
    )


class _Made(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets new tensors be made on the devices."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Written(TorchFunctionMode):
    """Lets tensors be made of Python's numbers there."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") is not None:
            place = torch.device(kwargs.pop("device"))
            return func(*args, **kwargs).to(place)
        return func(*args, **kwargs)


@contextmanager
def devices() -> Iterator[None]:
    """Let tensors be on the devices inside the block."""
    # What torch would set up on a real device is left out.
    torch._C._ensureCUDADeviceGuardSet()
    made: Any = _Made
    with mock.patch("torch.cuda._lazy_init"), torch.no_grad(), made(), _Written():
        yield


def spread(network: Any) -> Any:
    """Put the embeddings and every second layer on the first device, the others and the head on the second.

    Inputs follow, as accelerate's hooks let them.
    """
    parts = [network.model.embed_tokens, network.model.rotary_emb, *network.model.layers, network.model.norm]
    places = [DEVICES[0], DEVICES[0], *(DEVICES[n % 2] for n in range(len(network.model.layers))), DEVICES[1]]
    for part, place in zip([*parts, network.lm_head], [*places, DEVICES[1]], strict=True):
        for module in part.modules():
            for name, weight in list(module.named_parameters(recurse=False)):
                module._parameters[name] = nn.Parameter(Placed(weight.detach(), place), requires_grad=False)
            for name, buffer in list(module.named_buffers(recurse=False)):
                module._buffers[name] = Placed(buffer, place)
        part.register_forward_pre_hook(_follow(place), with_kwargs=True)
    network.register_forward_pre_hook(_follow(DEVICES[0]), with_kwargs=True)
    network.register_forward_hook(lambda _, __, found: _moved(found, DEVICES[0]))
    return network


def _follow(place: torch.device) -> Callable[..., Any]:
    def move(_: nn.Module, args: Any, kwargs: Any) -> Any:
        return _moved((args, kwargs), place)

    return move


def _moved(what: Any, place: torch.device) -> Any:
    return tree_map(lambda one: one.to(place) if isinstance(one, torch.Tensor) else one, what)
