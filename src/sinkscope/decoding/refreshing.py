"""Caches that compute some columns anew in each pass and reuse all others: which ones, a rule says, layer by layer.

    Denoising(cache="dkv:refresh=4")         Denoising(cache="elastic:gamma=0.9,window=16")

A diffusion model's keys are never final, so a cache of them is an approximation, and methods differ in what they
compute anew: dKV-Cache, dLLM-Cache, Elastic-Cache and d2Cache are rules of one cache (`refresh_rules`). A pass is made
over the whole canvas. Before each layer the rule names the columns that it computes, (batch, column); their hidden
states alone go through the layer, their keys and values take the place of the old ones, and they attend to all
columns. A column that a layer leaves out keeps its keys and values, and what the layer added to its hidden state when
it was last computed there. Where all columns are computed nothing is taken from the cache, and the pass is the plain
pass bit for bit.

Rows of a batch name their own columns. The row that names most decides how many are computed; the others compute one of
theirs several times, which changes nothing.

Where it misleads: time on a CPU says little of time on a GPU, where a pass over a few columns costs nearly what one
over all does. What was computed is counted (`Step.computed`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from transformers import Cache

from sinkscope.attention.evicting import KeyIndex, register_layer
from sinkscope.attention.function import observed
from sinkscope.decoding.caches import HeldLayer
from sinkscope.discovery import Register
from sinkscope.errors import UserError
from sinkscope.families import Model


@dataclass(frozen=True, kw_only=True, eq=False)
class Canvassed:
    """What a rule knows before a pass. Tensors are (batch, column) boolean unless it says otherwise."""

    index: int  # passes made before
    step: int  # passes made before in this block
    block: tuple[int, int]  # its columns, first and one past the last
    real: torch.Tensor  # no padding
    generated: torch.Tensor  # masked at the start
    masked: torch.Tensor  # generated, and still masked
    new: torch.Tensor  # committed in the pass before
    open: torch.Tensor  # may be committed now
    confidence: torch.Tensor  # (batch, column) of the likeliest token when last predicted; 0 before

    @property
    def everything(self) -> torch.Tensor:
        """All columns."""
        return torch.ones_like(self.real)


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerPass:
    """What a layer did, for rules that look at it. `columns` (batch, query): those that were computed."""

    query: torch.Tensor  # (batch, head, query, dim) rotated
    keys: torch.Tensor  # (batch, kv_head, column, dim) now
    keys_before: torch.Tensor | None  # the same before the pass
    columns: torch.Tensor
    scale: float
    real: torch.Tensor  # (batch, column) boolean

    def attention(self, query: torch.Tensor | None = None, keys: torch.Tensor | None = None) -> torch.Tensor:
        """(batch, head, query, column) float32: of these queries to these keys; the layer's own if left out."""
        query, keys = (self.query if query is None else query), (self.keys if keys is None else keys)
        keys = keys.repeat_interleave(query.shape[1] // keys.shape[1], dim=1)
        scores = query.float() @ keys.float().transpose(-1, -2) * self.scale
        return scores.masked_fill(~self.real[:, None, None], -torch.inf).softmax(-1)


class Rows(ABC):
    """A rule at work on one generation."""

    looks: ClassVar[bool] = False
    """Whether it wants `after` each layer's attention."""
    stale_predictions: ClassVar[bool] = False
    """Whether columns may be committed that the last layer did not compute."""

    def first(self, canvas: Canvassed) -> None:  # noqa: B027 - most rules learn nothing from it
        """The first pass is about to be made, which computes all columns."""

    @abstractmethod
    def plan(self, canvas: Canvassed) -> torch.Tensor:
        """The columns to compute in the first layer of a later pass, (batch, column) boolean."""

    def at(
        self, layer: int, columns: torch.Tensor, values: Callable[[], torch.Tensor], held: HeldColumns
    ) -> torch.Tensor:
        """The columns to compute in this layer, those of the layer before given. `values()`: (batch, column, value),
        what the layer's values of all columns would be now."""
        del layer, values, held
        return columns

    def after(self, layer: int, made: LayerPass) -> None:  # noqa: B027 - asked of rules that look
        """A layer's attention is done."""


class RefreshRule(ABC):
    """Which columns are computed anew. A new one is a frozen dataclass with the decorator `refresh_rule`."""

    name: ClassVar[str]

    @abstractmethod
    def begin(self, layers: int) -> Rows:
        """Start a generation."""


_REGISTER: Register[RefreshRule] = Register("cache")
REFRESH_RULES = _REGISTER.kinds
"""Rules by name."""
refresh_rule, read_refresh_rule = _REGISTER.file, _REGISTER.read


class HeldColumns(HeldLayer):
    """Keys and values of all columns of one layer. An `attention.evicting.EvictingLayer`."""

    drops = True  # attention must take the mask at the columns computed
    needs_received = False

    def __init__(self, owner: RefreshingCache, number: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._owner, self._number = owner, number
        self.added: torch.Tensor | None = None
        """(batch, column, hidden): what the layer added to each hidden state."""
        self.columns: torch.Tensor | None = None
        """(batch, query): the columns of the pass under way; None for all, in order."""
        self._before: torch.Tensor | None = None

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys, self.values = key_states.to(value_states.dtype), value_states
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: object, **__: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Put the new keys and values in their columns; returns those of all."""
        self._before = self.keys.clone() if self._owner.rows.looks and self.keys is not None else None
        if self.columns is None:
            self.lazy_initialization(key_states, value_states)
        else:
            assert self.keys is not None and self.values is not None
            for held, states in ((self.keys, key_states), (self.values, value_states)):
                held.scatter_(2, _over(self.columns, states), states.to(held.dtype))
        assert self.keys is not None and self.values is not None
        if self._owner.rows.looks or self.columns is not None:
            register_layer(self.keys, self)
        return self.keys, self.values

    @property
    def index(self) -> KeyIndex | None:
        return None

    def gather_mask(self, mask: torch.Tensor | None, queries: int) -> torch.Tensor | None:
        """The rows of the mask that belong to the columns computed."""
        del queries
        if mask is None or self.columns is None:
            return mask
        rows = self.columns[:, None, :, None].expand(-1, mask.shape[1], -1, mask.shape[-1])
        return mask.expand(len(self.columns), -1, -1, -1).gather(2, rows)

    def on_attention(self, query: torch.Tensor, scale: float, received: torch.Tensor | None) -> None:
        del received
        if not self._owner.rows.looks:
            return
        assert self.keys is not None
        every = torch.arange(self.keys.shape[2], device=query.device).expand(len(query), -1)
        self._owner.rows.after(
            self._number,
            LayerPass(
                query=query,
                keys=self.keys,
                keys_before=self._before,
                columns=every if self.columns is None else self.columns,
                scale=scale,
                real=self._owner.real,
            ),
        )

    def hold(self) -> None:
        """Nothing is ever final."""

    @property
    def nbytes(self) -> int:
        """Bytes of keys, values and what is kept of the hidden states."""
        return sum(one.untyped_storage().nbytes() for one in (self.keys, self.values, self.added) if one is not None)

    def get_seq_length(self) -> int:
        """Every pass is over the whole canvas."""
        return 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0


class RefreshingCache(Cache):
    """The cache of one generation. real (batch, column) boolean: columns that are no padding."""

    def __init__(self, model: Model, rule: RefreshRule, real: torch.Tensor) -> None:
        self._blocks = blocks_of(model)
        self.held = [HeldColumns(self, number) for number in range(len(self._blocks))]
        super().__init__(layers=list(self.held))
        self.rows, self.real = rule.begin(len(self.held)), real
        self.computed = torch.zeros(len(real), dtype=torch.long, device=real.device)
        """(batch,): columns that are no padding computed in the latest pass, summed over layers."""
        self._columns = torch.ones_like(real)
        self._shift = model.family.logit_shift

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the cache keeps alive."""
        return sum(layer.nbytes for layer in self.held)

    def plan(self, canvas: Canvassed) -> torch.Tensor:
        """Say which columns the next pass begins with. Returns what may be committed after it, as far as that is known,
        (batch, column) boolean."""
        if canvas.index == 0:
            self.rows.first(canvas)
            self._columns = canvas.everything
            return canvas.open
        self._columns = self.rows.plan(canvas)
        told = canvas.open if self.rows.stale_predictions else canvas.open & self._columns
        if self._shift:  # a column is predicted by the one before it
            self._columns = self._columns | nn.functional.pad(told[:, 1:], (0, 1))
        return told

    @contextmanager
    def computing(self) -> Iterator[None]:
        """Let the layers of the passes made inside the block compute the columns that the rule names alone.

        Raises `UserError` while the network is watched: statistics are of all queries.
        """
        if any(module in observed for block in self._blocks for module in block.modules()):
            raise UserError(
                "a cache that computes some columns alone can't be watched or recorded; use cache='dual', 'prefix' or "
                "None"
            )
        self.computed = torch.zeros_like(self.computed)
        with ExitStack() as hooks:
            for block, held in zip(self._blocks, self.held, strict=True):
                made = _Narrowed(self, block, held)
                hooks.callback(block.register_forward_pre_hook(made.before, with_kwargs=True).remove)
                hooks.callback(block.register_forward_hook(made.after).remove)
            yield

    def choose(self, held: HeldColumns, block: nn.Module, hidden: torch.Tensor) -> torch.Tensor | None:
        """The columns that a layer computes, (batch, query), given its input (batch, column, hidden); None for all."""
        columns = self._columns
        if held.keys is not None:
            columns = self.rows.at(held._number, columns, lambda: values_of(block, hidden), held)
        self._columns = columns
        self.computed += (columns & self.real).sum(-1)
        return None if bool(columns.all()) else padded_columns(columns)


class _Narrowed:
    """One layer while it computes some columns."""

    def __init__(self, cache: RefreshingCache, block: nn.Module, held: HeldColumns) -> None:
        self._cache, self._block, self._held = cache, block, held
        self._hidden: torch.Tensor | None = None

    def before(
        self, _: nn.Module, args: tuple[Any, ...], given: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Keep the hidden states of the columns to be computed alone."""
        hidden, *rest = args
        self._hidden = hidden
        columns = self._held.columns = self._cache.choose(self._held, self._block, hidden)
        if columns is None:
            return args, given
        cosine, sine = given["position_embeddings"]
        taken = dict(given)
        taken["position_embeddings"] = _at(cosine, columns), _at(sine, columns)
        if given.get("position_ids") is not None:
            taken["position_ids"] = given["position_ids"].expand(len(columns), -1).gather(1, columns)
        return (_at(hidden, columns), *rest), taken

    def after(self, _: nn.Module, __: object, output: torch.Tensor) -> torch.Tensor:
        """Put them back among the others."""
        held, hidden, columns = self._held, self._hidden, self._held.columns
        assert hidden is not None
        if columns is None:
            held.added = output - hidden
            return output
        assert held.added is not None
        index = columns.unsqueeze(-1).expand_as(output)
        held.added = held.added.scatter(1, index, output - hidden.gather(1, index))
        return (hidden + held.added).scatter(1, index, output)


def blocks_of(model: Model) -> list[nn.Module]:
    """The layers of a network. Raises `UserError` where they are not one after the other, with rotary positions given
    to each."""
    found = getattr(model.network.base_model, "layers", None)
    rotary = hasattr(model.network.base_model, "rotary_emb")
    if not isinstance(found, nn.ModuleList) or len(found) != model.shape.layers or not rotary:
        raise UserError(
            f"{model.name} ({type(model.network).__name__}) has no plain stack of layers that could compute some "
            "columns alone; use cache='dual', 'prefix' or None"
        )
    return list(found)


def values_of(block: Any, hidden: torch.Tensor) -> torch.Tensor:
    """What a layer's values (batch, column, value) of these hidden states would be. Raises `UserError` for a layer that
    is not built as Llama's."""
    if not hasattr(block, "input_layernorm") or not hasattr(getattr(block, "self_attn", None), "v_proj"):
        raise UserError(f"{type(block).__name__} does not compute its values as Llama does; use another cache")
    values: torch.Tensor = block.self_attn.v_proj(block.input_layernorm(hidden))
    return values


def padded_columns(columns: torch.Tensor) -> torch.Tensor:
    """Numbers (batch, query) of the columns marked, (batch, column) boolean, ascending, at least one a row; a row that
    has fewer than others repeats its last one."""
    numbers = torch.arange(columns.shape[1], device=columns.device)
    most = max(1, int(columns.sum(-1).max()))
    order = (~columns).long().argsort(dim=-1, stable=True)[:, :most]
    last = torch.where(columns, numbers, -1).amax(-1, keepdim=True).clamp(min=0)
    return torch.where(columns.gather(-1, order), order, last)


def _at(states: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """States (batch or 1, column, dim) at columns (batch, query)."""
    states = states.expand(len(columns), -1, -1)
    return states.gather(1, columns.unsqueeze(-1).expand(-1, -1, states.shape[-1]))


def _over(columns: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    """Columns (batch, query) as an index into the columns of keys, for states (batch, kv_head, query, dim)."""
    return columns[:, None, :, None].expand(-1, states.shape[1], -1, states.shape[-1])
