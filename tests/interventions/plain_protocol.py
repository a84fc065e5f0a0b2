"""The published protocol written out anew: a plain loop in float64, one prompt at a time, whole maps, and an additive
mask of -inf for every layer, head and query, made from the maps of the step before.

Nothing of sinkscope's attention, decoding or interventions is used: an attention function of its own keeps the maps
that it makes, and block caches are kept by it as keys and values laid over one another.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from transformers import AttentionInterface, PreTrainedModel

from sinkscope.families import Model

Decide = Callable[[int, torch.Tensor], torch.Tensor | None]
"""From the layer and its map (head, query, key) before any cut to the keys that go, (head, query, key) boolean."""


@dataclass
class Pass:
    """What one forward pass is to do and what it saw: maps (head, query, key), a layer each."""

    decide: Decide
    values: bool
    instead: list[torch.Tensor] | None  # of each layer, (kv_head, key or 1, dim): stands in for values of cut keys
    causal: bool
    fed: tuple[int, int]
    stored: list[tuple[torch.Tensor, torch.Tensor]]  # of each layer; empty before the first pass
    before: list[torch.Tensor] = field(default_factory=list)
    maps: list[torch.Tensor] = field(default_factory=list)
    cuts: list[torch.Tensor | None] = field(default_factory=list)


_under_way: list[Pass] = []


def plain_attention(
    _module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: object,
    scaling: float,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Softmax with an additive mask, for a batch of one. Registered as "plain-protocol"; gets no mask from outside."""
    assert attention_mask is None and len(query) == 1 and query.dtype == torch.float64
    now = _under_way[-1]
    layer = len(now.maps)
    if layer < len(now.stored):  # a pass over part of the canvas: the rest is as it was when the block began
        old = now.stored[layer]
        laid = [
            torch.cat([was[:, :, : now.fed[0]], new, was[:, :, now.fed[1] :]], 2)
            for was, new in zip(old, (key, value), strict=True)
        ]
        key, value = laid
    else:
        now.stored.append((key, value))
    key, value = (part.repeat_interleave(query.shape[1] // key.shape[1], dim=1)[0] for part in (key, value))
    scores = query[0] @ key.transpose(-1, -2) * scaling
    if now.causal:
        scores = scores + torch.full(scores.shape[-2:], -torch.inf, dtype=torch.float64).triu(1)
    plain = torch.softmax(scores, dim=-1)
    cut = now.decide(layer, plain)
    under = plain
    if cut is not None and not now.values:
        under = torch.softmax(scores + torch.zeros_like(scores).masked_fill(cut, -torch.inf), dim=-1)
    now.before.append(plain)
    now.maps.append(under)
    now.cuts.append(cut)
    mixing = plain.masked_fill(cut, 0) if cut is not None and now.values else under
    output = mixing @ value
    if cut is not None and now.instead is not None:
        other = now.instead[layer].repeat_interleave(query.shape[1] // now.instead[layer].shape[0], dim=0)
        output = output + (plain * cut) @ other[:, : value.shape[1]].expand(value.shape)
    return output.transpose(0, 1).unsqueeze(0), None


AttentionInterface.register("plain-protocol", plain_attention)


def doubled_precision(model: Model) -> Model:
    """The same model in float64."""
    return replace(model, network=copy.deepcopy(model.network).double())


def plain_network(model: Model) -> PreTrainedModel:
    """A float64 copy of its network under the attention function of this module."""
    network = copy.deepcopy(model.network).double()
    network.set_attn_implementation("plain-protocol")
    return network


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """What to cut: the `keys` that receive most, or with `lowest` as many of those that receive least."""

    keys: int
    lowest: bool = False
    same: bool = False
    clean: bool = False
    values: bool = False
    instead: list[torch.Tensor] | None = None  # see `Pass`; with `values`
    first_step: int = 1


@dataclass
class Counted:
    """Sums over layers and heads of one step, as `MaskingStats` names them."""

    units: float = 0
    keys: float = 0
    mask_keys: float = 0
    repeated_keys: float = 0
    mass: float = 0
    wanted_mass: float = 0
    chosen_mass: float = 0


@dataclass
class Told:
    """One step: canvas after it, confidence of what was committed, what was cut, and the maps (head, query, key)."""

    canvas: list[int]
    confidence: float
    counted: Counted
    maps: list[torch.Tensor]


class Stream:
    """One sequence of passes with its memory: what layers showed at the step before, and block caches."""

    def __init__(self, network: PreTrainedModel, protocol: Protocol, causal: bool, mask: int | None) -> None:
        self._network, self._protocol, self._causal, self._mask = network, protocol, causal, mask
        self._stored: dict[bool, list[tuple[torch.Tensor, torch.Tensor]]] = {True: [], False: []}
        self._shown: list[torch.Tensor] = []  # (head, key) of each layer, at the step before
        self._kept: dict[int, torch.Tensor] = {}  # by layer: rows of a causal model that were cut, (head, query, key)
        self._was_cut: dict[int, torch.Tensor] = {}
        self.step = 0

    def go(self, tokens: list[int], fed: tuple[int, int], *, begins: bool = True) -> tuple[torch.Tensor, Pass, Counted]:
        """Logits (query, token) of a pass. begins: a whole pass, from which a block cache is filled anew."""
        showing: list[torch.Tensor] = []
        if self._protocol.clean:
            showing = [self._received(one) for one in self._pass(tokens, fed, begins, lambda *_: None, True)[1].maps]
        counted = Counted()
        due = self.step >= self._protocol.first_step

        def decide(layer: int, plain: torch.Tensor) -> torch.Tensor | None:
            if not due:
                return None
            if self._protocol.same:
                map_of = showing[layer] if self._protocol.clean else self._received(plain)
            else:
                map_of = self._shown[layer]
            laid = self._lay(layer, self._cut(layer, map_of, plain, tokens, counted), plain)
            new = slice(-1, None) if self._causal and self.step > 0 else slice(None)  # queries that are cut now
            counted.mass += float((plain * laid)[:, new].sum(-1).mean(-1).sum())
            return laid

        logits, made = self._pass(tokens, fed, begins, decide, False)
        self._shown = showing if self._protocol.clean else [self._received(one) for one in made.maps]
        self.step += 1
        return logits, made, counted

    def _received(self, maps: torch.Tensor) -> torch.Tensor:
        return maps[:, -1] if self._causal else maps.mean(1)

    def _cut(
        self, layer: int, shown: torch.Tensor, plain: torch.Tensor, tokens: list[int], counted: Counted
    ) -> torch.Tensor:
        """(head, key) boolean, from what was shown (head, key), where causal models may show fewer keys."""
        heads, known, keys = *shown.shape, plain.shape[-1]
        sinks = torch.zeros(heads, keys, dtype=torch.bool)
        cut = sinks.clone()
        most = self._protocol.keys
        for head, row in enumerate(shown.tolist()):
            order = sorted(range(known), key=lambda key, row=row: (-row[key], key))  # type: ignore[misc]
            others = sorted(order[most:], key=lambda key, row=row: (row[key], key))  # type: ignore[misc]
            sinks[head, order[:most]] = True
            cut[head, others[:most] if self._protocol.lowest else order[:most]] = True
        before = self._was_cut.get(layer, torch.zeros(heads, 0, dtype=torch.bool))
        counted.units += heads
        counted.keys += int(cut.sum())
        counted.mask_keys += int((cut & torch.tensor([token == self._mask for token in tokens])).sum())
        counted.repeated_keys += int((cut[:, : before.shape[1]] & before).sum())
        counted.wanted_mass += float(shown[sinks[:, :known]].sum())
        counted.chosen_mass += float(shown[cut[:, :known]].sum())
        self._was_cut[layer] = cut
        return cut

    def _lay(self, layer: int, cut: torch.Tensor, plain: torch.Tensor) -> torch.Tensor:
        """Over all queries; over the last one and what was cut from those before it where the model is causal."""
        if not self._causal:
            return cut.unsqueeze(1).expand(plain.shape)
        laid = torch.zeros(plain.shape, dtype=torch.bool)
        if layer in self._kept:
            old = self._kept[layer]
            laid[:, : old.shape[1], : old.shape[2]] = old
        laid[:, (0 if self.step == 0 else -1) :] |= cut.unsqueeze(1)
        if not self._protocol.values:  # of its values a query may lose all; else one that would lose all keys keeps all
            laid &= ~(laid | torch.ones(plain.shape[-2:], dtype=torch.bool).triu(1)).all(-1, keepdim=True)
        self._kept[layer] = laid
        return laid

    def _pass(
        self, tokens: list[int], fed: tuple[int, int], begins: bool, decide: Decide, clean: bool
    ) -> tuple[torch.Tensor, Pass]:
        stored = [] if begins else self._stored[clean]
        now = Pass(decide, self._protocol.values, self._protocol.instead, self._causal, fed, stored)
        _under_way.append(now)
        with torch.no_grad():
            positions = torch.arange(*fed).unsqueeze(0)
            output = self._network(torch.tensor([tokens[slice(*fed)]]), position_ids=positions, use_cache=False)
        _under_way.pop()
        self._stored[clean] = now.stored
        return output.logits[0], now


def plain_values(model: Model, tokens: list[int]) -> list[torch.Tensor]:
    """Values of each layer in a plain pass over a text, (kv_head, key, dim)."""
    now = Pass(lambda *_: None, False, None, not model.family.bidirectional, (0, len(tokens)), [])
    _under_way.append(now)
    with torch.no_grad():
        plain_network(model)(torch.tensor([tokens]), use_cache=False)
    _under_way.pop()
    return [value[0] for _, value in now.stored]


def denoised(
    model: Model,
    prompt: list[int],
    protocol: Protocol,
    *,
    length: int,
    block: int,
    cache: str | None = None,
    guidance: float = 0.0,
) -> list[Told]:
    """One position a step, the most certain of the block first; `length` masks after the prompt, in blocks."""
    mask = model.family.mask_token_id
    assert mask is not None
    network, tokens = plain_network(model), [*prompt, *[mask] * length]
    given, blind = (Stream(network, protocol, False, mask) for _ in range(2))
    told: list[Told] = []
    for start in range(len(prompt), len(tokens), block):
        stop = start + block
        for number in range(block):
            whole = cache is None or number == 0
            fed = (0, len(tokens)) if whole else (start, stop if cache == "dual" else len(tokens))
            logits, made, counted = given.go(tokens, fed, begins=whole)
            if guidance:
                hidden = [*[mask] * len(prompt), *tokens[len(prompt) :]]
                other, _, _ = blind.go(hidden, fed, begins=whole)
                logits = other + (guidance + 1) * (logits - other)
            best = (-1.0, -1, -1)
            for place in range(start, stop):
                if tokens[place] == mask:
                    row = max(place - fed[0] - model.family.logit_shift, 0)
                    certain, token = _prediction(logits[row], mask)
                    best = max(best, (certain, place, token))
            tokens[best[1]] = best[2]
            told.append(Told(list(tokens), best[0], counted, made.maps))
    return told


def _prediction(logits: torch.Tensor, mask: int) -> tuple[float, int]:
    """The best token that is not the mask, and its probability."""
    probabilities = torch.softmax(logits, dim=-1)
    token = int(probabilities.index_fill(0, torch.tensor([mask]), -1).argmax())
    return float(probabilities[token]), token


def decoded(model: Model, prompt: list[int], protocol: Protocol, *, length: int) -> list[Told]:
    """Token after token without a cache: all rows are computed anew, each under the cut that it had when it was new."""
    stream, tokens, told = Stream(plain_network(model), protocol, True, None), list(prompt), list[Told]()
    for _ in range(length):
        logits, made, counted = stream.go(tokens, (0, len(tokens)))
        probabilities = torch.softmax(logits[-1], dim=-1)
        tokens.append(int(probabilities.argmax()))
        told.append(Told(list(tokens), float(probabilities.max()), counted, made.maps))
        if tokens[-1] in model.family.eos_token_ids:
            break
    return told
