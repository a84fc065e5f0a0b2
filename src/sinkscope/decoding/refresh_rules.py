"""Published caches of diffusion models that compute some columns anew in each pass, as rules of `refreshing`.

    dkv:refresh=8                       what was decoded before the pass before is reused (dKV-Cache)
    dllm:prompt=50,response=2           the prompt seldom, of the response what changed most (dLLM-Cache)
    elastic:gamma=0.9,window=16         until attention drifts, then all from the next layer on (Elastic-Cache)
    d2:masks=32,rollout=0.1             likely masks, what is new, and what attention flows to (d2Cache)

Each says where its details are from. All run here in the blocks of `Denoising`, rows of a batch by themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from sinkscope.decoding.refreshing import (
    REFRESH_RULES,
    Canvassed,
    HeldColumns,
    LayerPass,
    RefreshRule,
    Rows,
    read_refresh_rule,
    refresh_rule,
)
from sinkscope.errors import UserError

__all__ = ["D2", "DKV", "DLLM", "REFRESH_RULES", "Elastic", "RefreshRule", "read_refresh_rule"]


def _at_least(rule: RefreshRule, least: int, *names: str) -> None:
    for name in names:
        value = getattr(rule, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise UserError(f"{name} of cache {rule.name!r} must be a whole number of at least {least}, got {value!r}")


def _share(rule: RefreshRule, *names: str) -> None:
    for name in names:
        value = getattr(rule, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise UserError(f"{name} of cache {rule.name!r} must be a share from 0 to 1, got {value!r}")


@refresh_rule("dkv")
@dataclass(frozen=True)
class DKV(RefreshRule):
    """dKV-Cache-Decode (2505.15781): a column is reused from one pass after it was decoded on.

    So masks and what was decoded in the pass before are computed. Every `refresh` passes of a block, and in its first
    two, all are (the authors' `generate`, LLaDA; they use 8 for LLaDA, 4 for Dream). Its variants for long prompts and
    the greedy one are not here.
    """

    refresh: int = 8

    def __post_init__(self) -> None:
        _at_least(self, 1, "refresh")

    def begin(self, layers: int) -> Rows:
        del layers
        return _DKVRows(self)


class _DKVRows(Rows):
    def __init__(self, rule: DKV) -> None:
        self._rule = rule

    def plan(self, canvas: Canvassed) -> torch.Tensor:
        if canvas.step <= 1 or canvas.step % self._rule.refresh == 0:
            return canvas.everything
        return canvas.masked | canvas.new


@refresh_rule("dllm")
@dataclass(frozen=True)
class DLLM(RefreshRule):
    """dLLM-Cache (2506.06295): the prompt every `prompt` passes, the response every `response`, and in between the
    `share` of the response whose values changed most, layer by layer.

    Change is the cosine between a layer's values now, which are computed for the whole response, and those it holds;
    the new values are kept for all. Predictions of columns that were not computed come from what is reused. After the
    authors' hooks for LLaDA, where a column that a layer leaves out keeps what attention and MLP had added; defaults
    are those of d2Cache's repository (the authors' differ by task: 25 to 100 and 1 to 8).
    """

    prompt: int = 50
    response: int = 2
    share: float = 0.25

    def __post_init__(self) -> None:
        _at_least(self, 1, "prompt", "response")
        _share(self, "share")

    def begin(self, layers: int) -> Rows:
        del layers
        return _DLLMRows(self)


class _DLLMRows(Rows):
    stale_predictions = True

    def __init__(self, rule: DLLM) -> None:
        self._rule = rule
        self._response = self._prompt = torch.zeros(0)

    def plan(self, canvas: Canvassed) -> torch.Tensor:
        whole = canvas.index % self._rule.response == 0
        self._prompt = ~canvas.generated & (canvas.index % self._rule.prompt == 0)
        self._response = canvas.generated & (not whole)  # to be chosen from
        return self._prompt | (canvas.generated & whole)

    def at(
        self, layer: int, columns: torch.Tensor, values: Callable[[], torch.Tensor], held: HeldColumns
    ) -> torch.Tensor:
        del layer
        if not bool(self._response.any()) or self._rule.share == 0:
            return columns
        assert held.values is not None
        batch, heads, width, dim = held.values.shape
        now = values().view(batch, width, heads, dim).transpose(1, 2).to(held.values.dtype)
        was, new = (one.transpose(1, 2).flatten(2).float() for one in (held.values, now))
        alike = torch.cosine_similarity(new, was, dim=-1).masked_fill(~self._response, torch.inf)
        counts = (self._response.sum(-1, keepdim=True) * self._rule.share).long()
        chosen = alike.argsort(dim=-1, stable=True).argsort(dim=-1) < counts
        held.values = torch.where(self._response[:, None, :, None], now, held.values)
        return self._prompt | (chosen & self._response)


@refresh_rule("elastic")
@dataclass(frozen=True)
class Elastic(RefreshRule):
    """Elastic-Cache (2510.14973): the first `window` masks, what is new, and the most attended token of each layer are
    computed; where that token's attention has drifted, every column from the next layer on.

    Drift is a cosine below `gamma` between the attention that tracked tokens pay now and would have paid with the
    queries and keys of before: over the heads, averaged over tokens and columns, as in the authors' code for LLaDA.
    Tracked are `track` tokens a layer, those that the window's queries attend to most, masks left out. Only the window
    may be committed. With gamma above 1 every pass computes everything.
    """

    gamma: float = 0.9
    window: int = 16
    track: int = 1

    def __post_init__(self) -> None:
        _at_least(self, 1, "window", "track")
        if isinstance(self.gamma, bool) or not isinstance(self.gamma, int | float) or self.gamma < 0:
            raise UserError(f"gamma of cache {self.name!r} must be a number of at least 0, got {self.gamma!r}")

    def begin(self, layers: int) -> Rows:
        return _ElasticRows(self, layers)


class _ElasticRows(Rows):
    looks = True

    def __init__(self, rule: Elastic, layers: int) -> None:
        self._rule = rule
        self._tracked: list[torch.Tensor | None] = [None] * layers  # (batch, column) boolean
        self._queries: list[torch.Tensor | None] = [None] * layers  # (batch, head, column, dim)
        self._drifted = self._window = self._masked = self._following = torch.zeros(0)

    def plan(self, canvas: Canvassed) -> torch.Tensor:
        self._masked = canvas.masked
        self._window = canvas.masked & (canvas.masked.cumsum(-1) <= self._rule.window)
        self._drifted = torch.zeros(len(canvas.real), 1, dtype=torch.bool, device=canvas.real.device)
        tracked = [one for one in self._tracked if one is not None]
        self._following = torch.stack(tracked).any(0) if tracked else torch.zeros_like(canvas.real)
        if self._rule.gamma > 1:
            return canvas.everything
        return self._window | canvas.new | self._following

    def first(self, canvas: Canvassed) -> None:
        """What the first pass must know."""
        self.plan(canvas)

    def at(
        self, layer: int, columns: torch.Tensor, values: Callable[[], torch.Tensor], held: HeldColumns
    ) -> torch.Tensor:
        del layer, values, held
        return columns | self._drifted

    def after(self, layer: int, made: LayerPass) -> None:
        attention, queries = made.attention(), self._queries[layer]
        at = made.columns
        if queries is not None and made.keys_before is not None:
            past = made.attention(queries.gather(2, _heads(at, queries)), made.keys_before)
            alike = torch.cosine_similarity(past, attention, dim=1)  # (batch, query, column)
            counted = self._following.gather(-1, at) & _first_of(at)
            weights = (counted / counted.sum(-1, keepdim=True).clamp(min=1)).float()
            alike = alike.masked_fill(~made.real.unsqueeze(1), 0).sum(-1) / made.real.sum(-1, keepdim=True)
            drift = (alike * weights).sum(-1, keepdim=True) < self._rule.gamma
            self._drifted = self._drifted | (drift & counted.any(-1, keepdim=True))
        if queries is None:
            queries = made.query.new_zeros(*made.query.shape[:2], made.keys.shape[2], made.query.shape[-1])
        self._queries[layer] = queries.scatter(2, _heads(at, made.query), made.query)
        asks = self._window.gather(-1, at) & _first_of(at)
        paid = (attention.sum(1) * asks.unsqueeze(-1)).sum(1)  # (batch, column)
        paid = paid.masked_fill(self._masked | ~made.real, 0)
        most = paid.topk(min(self._rule.track, paid.shape[-1]), dim=-1).indices
        self._tracked[layer] = torch.zeros_like(self._masked).scatter(-1, most, True) & made.real


@refresh_rule("d2")
@dataclass(frozen=True)
class D2(RefreshRule):
    """d2Cache (2509.23094): the `masks` masks that are likely to be decoded soon, what is new, and of the others those
    to which attention flows.

    A mask is likelier the surer it was when last predicted and the more is decoded about it (a Gaussian of width
    `sigma`); those of the current block come first. Attention's flow is its rollout over the layers, of which the
    largest shares up to `rollout` are taken; gaps of up to `gap` columns between what was chosen are filled. After the
    authors' code, but that a mask's confidence is known only where it was open to be committed. Only what is computed
    may be committed.
    """

    masks: int = 32
    rollout: float = 0.1
    sigma: float = 10.0
    gap: int = 4

    def __post_init__(self) -> None:
        _at_least(self, 1, "masks")
        _at_least(self, 0, "gap")
        _share(self, "rollout")
        if isinstance(self.sigma, bool) or not isinstance(self.sigma, int | float) or not self.sigma > 0:
            raise UserError(f"sigma of cache {self.name!r} must be a number above 0, got {self.sigma!r}")

    def begin(self, layers: int) -> Rows:
        del layers
        return _D2Rows(self)


class _D2Rows(Rows):
    looks = True

    def __init__(self, rule: D2) -> None:
        self._rule = rule
        self._flow = torch.zeros(0)  # (batch, column, column): rows of the rollout, layer by layer

    def plan(self, canvas: Canvassed) -> torch.Tensor:
        likely = canvas.confidence * density(canvas.masked, canvas.generated, self._rule.sigma)
        in_block = torch.zeros_like(canvas.real)
        in_block[:, slice(*canvas.block)] = True
        likely = likely + in_block * (likely.amax(-1, keepdim=True) + 1)
        likely = likely.masked_fill(~self._searched(canvas), -torch.inf)
        order = likely.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)
        chosen = (order < self._rule.masks) & likely.isfinite()
        chosen = chosen | canvas.new
        return filled(chosen | self._flows_to(canvas, ~chosen), self._rule.gap)

    def _searched(self, canvas: Canvassed) -> torch.Tensor:
        """Masks of the block, and of as many blocks after it as hold `masks` of them."""
        length = max(1, canvas.block[1] - canvas.block[0])
        enough = (canvas.masked.cumsum(-1) >= self._rule.masks).long()
        last = torch.where(enough.any(-1), enough.argmax(-1), canvas.real.shape[1] - 1)
        block = (torch.arange(canvas.real.shape[1], device=canvas.real.device) - canvas.block[0]) // length
        return canvas.masked & (block >= 0) & (block <= block[last].unsqueeze(-1))

    def _flows_to(self, canvas: Canvassed, among: torch.Tensor) -> torch.Tensor:
        received = self._flow.sum(1).masked_fill(~(among & canvas.real), 0)
        shares = received / received.sum(-1, keepdim=True).clamp(min=1e-9)
        ordered, order = shares.sort(dim=-1, descending=True, stable=True)
        taken = (ordered.cumsum(-1) <= self._rule.rollout) | (torch.arange(shares.shape[-1], device=order.device) < 1)
        if self._rule.rollout == 1:
            taken = torch.ones_like(taken)
        return torch.zeros_like(among).scatter(-1, order, taken) & among

    def after(self, layer: int, made: LayerPass) -> None:
        width = made.keys.shape[2]
        one = torch.eye(width, device=made.keys.device).expand(len(made.query), -1, -1)
        rows = one.scatter(1, made.columns.unsqueeze(-1).expand(-1, -1, width), made.attention().mean(1))
        rows = torch.where(made.real.unsqueeze(-1), rows, one) + one  # padding asks nobody
        rows = rows / rows.sum(-1, keepdim=True)
        self._flow = rows if layer == 0 else rows @ self._flow


def density(masked: torch.Tensor, generated: torch.Tensor, sigma: float) -> torch.Tensor:
    """How much is decoded about each column, (batch, column) float32: the share of a Gaussian around it that does not
    lie on masks. masked, generated (batch, column) boolean: the generated columns are the last, alike in all rows.

    What lies before them counts as decoded, what lies after them as the last one, for as many columns as there are.
    """
    length = int(generated[0].sum())
    places, far = torch.arange(2 * length, device=masked.device), torch.arange(1, 2 + int(9 * sigma))
    kernel = torch.exp(-((places - places[:length].view(-1, 1)) ** 2) / (2 * sigma**2)).double()
    within = masked[:, -length:].double()
    missing = within @ kernel[:, :length] + within[:, -1:] * kernel[:, length:].sum(-1)
    total = 1 + 2 * torch.exp(-(far.double() ** 2) / (2 * sigma**2)).sum()
    found = torch.ones(masked.shape, dtype=torch.float64, device=masked.device)
    found[:, -length:] = 1 - missing / total
    return found.float()


def filled(chosen: torch.Tensor, gap: int) -> torch.Tensor:
    """What was chosen, (batch, column) boolean, and columns between two that lie at most `gap` apart."""
    width = chosen.shape[1]
    places = torch.arange(width, device=chosen.device).expand_as(chosen)
    after = torch.where(chosen, places, 2 * width + gap).flip(-1).cummin(-1).values.flip(-1)
    before = torch.where(chosen, places, -width - gap).cummax(-1).values
    return chosen | (after - before <= gap)


def _heads(columns: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    """Columns (batch, query) as an index for states (batch, head, column, dim)."""
    return columns[:, None, :, None].expand(-1, states.shape[1], -1, states.shape[-1])


def _first_of(columns: torch.Tensor) -> torch.Tensor:
    """(batch, query) boolean: columns (batch, query) that do not repeat the one before them."""
    return torch.nn.functional.pad(columns[:, 1:] != columns[:, :-1], (1, 0), value=True)
