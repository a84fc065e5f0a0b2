"""The kernel for GPUs: SDPA's output bit for bit, and column sums in tiles that never leave the chip (`tiles`).

    column mean of key j = sum_i w_i exp(s_ij - log_sum_i)

SDPA's own fused kernels know the logarithm of each row's sum (the log-sum-exp of arXiv 2205.14135, section 3.1), and
are made to tell it; where none of them runs, a sweep over the rows computes it. Soft caps and learned sinks, which SDPA
does not know, get their output from that sweep too, and so do layers under a cut, with the share that was removed. No
matrix of query x key is made but the mask that the network itself brings.

A layer goes to `two-pass` where full maps are wanted, in float64, for a score function (flex attention), for heads of
more than 256 dims, and where the sweep would have to give gradients. Everything is deterministic.

Costs beside SDPA: the product of queries and keys once more, an exponential a score; a row sweep (as much again) for
entropy. `benchmarks/kernel_cost.py` predicts it; it was not measured on a GPU yet.
"""

import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakIdKeyDictionary

from sinkscope.attention.given import Accumulator, Attention, Cut, Sums, Wanted
from sinkscope.attention.kernels import KERNELS, two_pass

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_MOST_DIMS = 256

_COMPUTES_LOG_SUMS = {"_scaled_dot_product_efficient_attention": 4, "_scaled_dot_product_cudnn_attention": 4}
"""Operators behind SDPA that give the logarithms of their sums if an argument asks for them, and its place."""

_TELLS_LOG_SUMS = {
    *_COMPUTES_LOG_SUMS, "_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class RowSums:
    """What a sweep over the rows gives, each (batch, head, query); output (batch, query, head, dim). None: not asked.

    log_sums: +inf for a row that sees nothing. log_sums_cut: the same for the keys that are cut, +inf in rows that
    lose them.
    """

    log_sums: torch.Tensor
    log_sums_cut: torch.Tensor | None = None
    output: torch.Tensor | None = None
    entropy: torch.Tensor | None = None
    removed: torch.Tensor | None = None


@cache
def available(device: torch.device) -> bool:
    """Whether Triton can be used there: it is installed, finds the C compiler that it needs, and the GPU is one of
    those it supports; or it was told to interpret its kernels (TRITON_INTERPRET=1), on any device."""
    if find_spec("triton") is None:
        return False
    if os.environ.get("TRITON_INTERPRET") == "1":
        return True
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    if device.type != "cuda" or compiler is None or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability(device) >= (8, 0)


def kernels_for(device: torch.device) -> tuple[str, ...]:
    """Names of the kernels that run on a device, the fastest one first."""
    if device.type != "cpu":
        return ("fused", "two-pass", "one-pass") if available(device) else ("two-pass", "one-pass")
    return tuple(name for name in KERNELS if name != "fused" or available(device))


def suits(attention: Attention, *, gradients: bool) -> bool:
    """Whether a call can be computed in tiles. gradients: its output has to give them where autograd runs, which that
    of a sweep over the rows can't."""
    states = (attention.query, attention.key, attention.value, attention.learned_sink, attention.bias)
    gradients = gradients and torch.is_grad_enabled()
    return (
        attention.query.dtype in _DTYPES
        and attention.changed is None
        and max(attention.query.shape[-1], attention.value.shape[-1]) <= _MOST_DIMS
        and not (gradients and any(one is not None and one.requires_grad for one in states))
        and available(attention.query.device)
    )


def fused(attention: Attention, accumulator: Accumulator, sdpa: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Output of SDPA, bit for bit where SDPA can compute it. Returns (batch, query, head, dim)."""
    wanted = accumulator.wanted()
    beyond_sdpa = attention.softcap is not None or attention.learned_sink is not None
    if wanted is None or not suits(attention, gradients=beyond_sdpa):
        return two_pass(attention, accumulator, sdpa)
    entropy = any(one.entropy for one in wanted)
    log_sums = None
    if not beyond_sdpa:
        with _LogSums(attention) as told:
            output = sdpa()
        log_sums = told.log_sums
    if entropy or log_sums is None:
        rows = sweep_rows(attention, output=beyond_sdpa, entropy=entropy)
    else:
        rows = RowSums(log_sums=log_sums)
    hand_over(attention, wanted, rows, None)
    return output if rows.output is None else rows.output


def cut_in_tiles(attention: Attention, cut: Cut, wanted: list[Wanted]) -> tuple[torch.Tensor, torch.Tensor]:
    """Output (batch, query, head, dim) of a layer under a cut, and the attention removed, (batch, head, query)."""
    rows = sweep_rows(attention, output=True, entropy=any(one.entropy for one in wanted), cut=cut)
    hand_over(attention, wanted, rows, cut)
    assert rows.output is not None and rows.removed is not None
    return rows.output, rows.removed


def hand_over(attention: Attention, wanted: list[Wanted], rows: RowSums, cut: Cut | None) -> None:
    """Sum the columns for everybody who wants them."""
    to_no_key = None
    if attention.learned_sink is not None:
        to_no_key = torch.exp(attention.learned_sink.detach().float().view(-1, 1) - rows.log_sums)
    for one in wanted:
        by_weight = sum_columns(attention, one.weights, rows, cut)
        no_key = None if to_no_key is None else torch.einsum("bgq,bhq->bhg", one.weights.to(to_no_key), to_no_key)
        one.take(Sums(by_weight=by_weight, no_key=no_key, entropy=rows.entropy if one.entropy else None))


class _LogSums(TorchDispatchMode):
    """Lets the fused kernel that SDPA picks tell the logarithms of its sums, (batch, head, query), besides its output.

    `log_sums` stays None where no fused kernel ran, or one that rounds scores more than the sums here do.
    """

    def __init__(self, attention: Attention) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._shape = attention.query.shape[:3]
        # On a GPU scores are summed in float32, but for TF32; on a CPU they are rounded to half precision.
        float32, cpu = attention.query.dtype == torch.float32, attention.query.device.type == "cpu"
        self._usable = float32 if cpu else not float32 or torch.get_float32_matmul_precision() == "highest"
        self._told: list[torch.Tensor] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if name in _COMPUTES_LOG_SUMS:
            place = _COMPUTES_LOG_SUMS[name]
            args = (*args[:place], True, *args[place + 1 :])
        found = func(*args, **(kwargs or {}))
        if name in _TELLS_LOG_SUMS:
            self._told.append(found[1])
        return found

    @property
    def log_sums(self) -> torch.Tensor | None:
        batch, heads, queries = self._shape
        if len(self._told) != 1 or not self._usable:
            return None
        told = self._told[0]
        told = told.squeeze(-1) if told.ndim == 4 else told  # cuDNN's
        fits = told.ndim == 3 and told.shape[:2] == (batch, heads) and told.shape[2] >= queries  # some round up
        return _rows_of(told[..., :queries]) if fits else None


def sweep_rows(attention: Attention, *, output: bool, entropy: bool = False, cut: Cut | None = None) -> RowSums:
    """Go over the rows of a layer, under a cut if there is one."""
    from sinkscope.attention.tiles import row_tiles

    query, value = attention.query, attention.value
    batch, heads, queries, _ = query.shape
    kind = 0 if cut is None else 2 if cut.values_only else 1
    of_rows = (batch, heads, queries)
    log_sums = query.new_empty(of_rows, dtype=torch.float32)
    made = RowSums(
        log_sums=log_sums,
        log_sums_cut=torch.empty_like(log_sums) if kind == 1 else log_sums if kind == 2 else None,
        output=value.new_empty(batch, queries, heads, value.shape[-1]) if output else None,
        entropy=torch.empty_like(log_sums) if entropy else None,
        removed=torch.empty_like(log_sums) if kind else None,
    )
    shared, instead = _Operands(attention), None
    if cut is not None and cut.instead is not None:
        kv_heads, keys = attention.key.shape[1:3]
        instead = _rows_of(cut.instead.to(value.dtype).expand(batch, kv_heads, keys, -1))
    tile = row_tile(query.dtype, max(shared.dims, shared.value_dims))
    _launch(
        row_tiles, _tiles(queries, tile["ROWS"]) * batch * heads, query.device,
        shared.query, shared.key, shared.value, instead, shared.mask,
        _bytes(None if cut is None else cut.keys.expand(batch, heads, -1)),
        _bytes(None if cut is None else cut.queries),
        None if attention.learned_sink is None else attention.learned_sink.detach().contiguous(),
        made.output, made.log_sums, made.log_sums_cut, made.entropy, made.removed,
        *shared.query.stride()[:3], *shared.key.stride()[:3], *shared.value.stride()[:3],
        *((0, 0, 0) if instead is None else instead.stride()[:3]), *shared.mask_strides,
        *shared.sizes, shared.scale, shared.cap, shared.lowest,
        VALUE_DIM=value.shape[-1], SINK=attention.learned_sink is not None, CUT=kind,
        CUT_ROWS=cut is not None and cut.queries is not None, INSTEAD=instead is not None, OUTPUT=output,
        ENTROPY=entropy, VALUE_TILE=shared.value_dims, **shared.flags, **tile,
    )  # fmt: skip
    return made


def sum_columns(attention: Attention, weights: torch.Tensor, rows: RowSums, cut: Cut | None = None) -> torch.Tensor:
    """Sums (batch, head, group, key), float32, over the queries of weight times probability; weights (batch, group,
    query), none of them negative."""
    from sinkscope.attention.tiles import column_tiles

    batch, heads = attention.query.shape[:2]
    keys, groups = attention.key.shape[2], weights.shape[1]
    order, before = (None, None) if groups == 1 else _listed(weights)
    weights = weights.to(rows.log_sums).contiguous()
    sums = torch.empty(batch, heads, groups, keys, device=weights.device)
    shared = _Operands(attention)
    tile = column_tile(attention.query.dtype, shared.dims)
    _launch(
        column_tiles, _tiles(keys, tile["KEYS"]) * groups * batch * heads, weights.device,
        shared.query, shared.key, shared.mask,
        _bytes(None if cut is None or cut.values_only else cut.keys.expand(batch, heads, -1)),
        rows.log_sums, rows.log_sums_cut, weights, order, before, sums,
        *shared.query.stride()[:3], *shared.key.stride()[:3], *shared.mask_strides, *rows.log_sums.stride()[:2],
        *shared.sizes[:2], groups, *shared.sizes[2:], shared.scale, shared.cap, shared.lowest,
        CUT=cut is not None and not cut.values_only, LISTED=groups > 1, **shared.flags, **tile,
    )  # fmt: skip
    return sums


def _launch(kernel: Any, programs: int, device: torch.device, *arguments: Any, **flags: Any) -> None:
    """Triton launches on the current device, which of a network's layers need not have."""
    current: AbstractContextManager[Any] = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
    with current:
        kernel[(programs,)](*arguments, **flags)


def row_tile(dtype: torch.dtype, dims: int) -> dict[str, int]:
    """Rows and keys of a tile, warps of a program and stages of its loads, of a sweep over the rows.

    The largest that fit into the 99 KB of shared memory that every GPU since Ampere has.
    """
    if dtype == torch.float32:
        rows, keys, stages = (64, 32, 1) if dims <= 128 else (32, 16, 1)
    else:
        rows, keys, stages = (64, 64, 2) if dims <= 128 else (64, 32, 1)
    return {"ROWS": rows, "KEYS": keys, "num_warps": 4, "num_stages": stages}


def column_tile(dtype: torch.dtype, dims: int) -> dict[str, int]:
    """The same of sums over the columns."""
    if dtype == torch.float32:
        return {"ROWS": 64 if dims <= 128 else 32, "KEYS": 32, "num_warps": 4, "num_stages": 1}
    if dims <= 128:
        return {"ROWS": 64, "KEYS": 128, "num_warps": 8, "num_stages": 2}
    return {"ROWS": 64, "KEYS": 64, "num_warps": 4, "num_stages": 1}


class _Operands:
    """What both sweeps are given: states, mask and numbers."""

    def __init__(self, attention: Attention) -> None:
        batch, heads, queries, dim = attention.query.shape
        kv_heads, keys = attention.key.shape[1:3]
        states = (attention.query, attention.key, attention.value)
        self.query, self.key, self.value = (_rows_of(one.detach()) for one in states)
        self.sizes = (heads, heads // kv_heads, queries, keys)
        mask = _one_mask(attention)
        self.lowest, kind = -torch.inf, 0
        if mask is not None:
            kind = 1 if mask.dtype == torch.bool else 2
            self.lowest = 0.0 if kind == 1 else torch.finfo(mask.dtype).min
            mask = _bytes(mask, keep=True) if kind == 1 else mask
            mask = mask.expand(batch, heads, queries, keys)
        self.mask, self.mask_strides = mask, (0, 0, 0, 0) if mask is None else mask.stride()
        self.dims, self.value_dims = _padded(dim), _padded(self.value.shape[-1])
        softcap = attention.softcap
        # Scores in units of log 2; under a cap the scores come in units of the cap.
        self.scale = attention.scale * _LOG2E if softcap is None else attention.scale / softcap
        self.cap = 0.0 if softcap is None else softcap * _LOG2E
        self.flags = {
            "DIM": dim, "CAUSAL": attention.causal, "MASK": kind, "BY_ROW": kind > 0 and self.mask_strides[2] != 0,
            "SOFTCAP": softcap is not None, "PRECISION": "tf32x3", "DIM_TILE": self.dims,
        }  # fmt: skip


_LOG2E = 1.4426950408889634


def _one_mask(attention: Attention) -> torch.Tensor | None:
    """Bias and mask as one, boolean or added; of an added one its dtype's lowest number hides a key."""
    mask, bias = attention.mask, attention.bias
    if bias is not None:
        whole = bias.detach().float()
        if mask is None:
            return whole
        hidden = mask.logical_not() if mask.dtype == torch.bool else mask <= torch.finfo(mask.dtype).min
        return (whole if mask.dtype == torch.bool else whole + mask).masked_fill(hidden, -torch.inf)
    return mask if mask is None or mask.dtype in (torch.bool, *_DTYPES) else mask.float()


def _bytes(mask: torch.Tensor | None, keep: bool = False) -> Any:
    """A boolean tensor as Triton loads it. keep: as it lies, else laid out anew where it has to be."""
    return None if mask is None else (mask if keep else mask.contiguous()).view(torch.uint8)


def _rows_of(states: torch.Tensor) -> torch.Tensor:
    if states.device.type == "cpu" and states.dtype == torch.bfloat16:
        states = states.float()  # exact, and Triton's interpreter can't multiply bfloat16
    return states if states.stride(-1) == 1 else states.contiguous()


def _padded(dim: int) -> int:
    """Dims that a tile of so many has: products take powers of two, from 16 on."""
    return max(16, 1 << (dim - 1).bit_length())


def _tiles(size: int, tile: int) -> int:
    return -(-size // tile)


_lists = WeakIdKeyDictionary()
"""What `_listed` made of weights that are still there: those of a pass are asked for in every layer."""


def _listed(weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The queries that have a weight, in order, (batch, group, query), and how many of them come before each query,
    (batch, group, query + 1)."""
    if weights not in _lists:
        there = (weights > 0).to(torch.int32)
        order = torch.sort(there, dim=-1, descending=True, stable=True).indices.to(torch.int32)
        _lists[weights] = order, torch.nn.functional.pad(there.cumsum(-1, dtype=torch.int32), (1, 0)).contiguous()
    found: tuple[torch.Tensor, torch.Tensor] = _lists[weights]
    return found


KERNELS["fused"] = fused
