"""The laboratory's networks: transformers' Llama, whose attention may have another form than softmax.

Each form is what somebody proposes against attention sinks, in the smallest network that has it:

- `softmax`: the stock network.
- `softmax-off-by-one`: one more logit, 0, takes part in every softmax and has no value, so that a head may attend to
  nothing (Miller 2023, "Attention is off by one").
- `learned-sink`: that logit is learned, one a head, as in gpt-oss.
- `key-value-bias`: one more key and value a head, both learned (Sun et al. 2024, arXiv 2402.17762, eq. 3).
- `gated`: the output of every head is multiplied by a sigmoid of the token's own hidden state, element by element,
  before the output projection (Qiu et al. 2025, arXiv 2505.06708, G1).
- `sigmoid`: probabilities are sigmoids of score - log(number of keys), so that they need not add up to 1 (Ramapuram et
  al. 2024, arXiv 2409.04431).

Contexts have equal lengths and no padding, so the network's own mask is not asked for: a network is causal,
block-causal or neither, as it is told (`see`). Attention is computed plainly, with its whole map, which `LayerMaps`
keeps for whoever asks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, LlamaConfig, LlamaForCausalLM

from sinkscope.lab.recipe import LabRecipe
from sinkscope.language.chains import BOS_ID, CHAIN_WORDS

NAME = "sinkscope-lab"
_WORDS = len(CHAIN_WORDS)


@dataclass
class LayerMaps:
    """What attention did in a pass, one tensor a layer."""

    probabilities: list[Tensor] = field(default_factory=list)
    """(row, head, query, key): of tokens alone, registers included; a bias or a learned sink has none."""
    values: list[Tensor] = field(default_factory=list)
    """(row, head, key, dim)"""
    keys: list[Tensor] = field(default_factory=list)
    """(row, head, key, dim)"""


class Attending(nn.Module):
    """The form of one layer's attention, with what it learns."""

    def __init__(self, recipe: LabRecipe) -> None:
        super().__init__()
        self.form = recipe.attention
        self.block_length: int | None = 1 if recipe.objective == "next-token" else None
        """Of block-causal attention: 1 is causal, None sees everything."""
        self.registers = recipe.registers
        self.alone = recipe.registers if recipe.registers_mode == "see-themselves" else 0
        self.maps: LayerMaps | None = None
        self.cut: Tensor | None = None
        """(row, head, key) boolean: keys that no later query sees, where somebody intervenes."""
        dim = recipe.width // recipe.heads
        if self.form == "learned-sink":
            self.sink = nn.Parameter(torch.zeros(recipe.heads))
        if self.form == "key-value-bias":
            self.bias_key = nn.Parameter(0.02 * torch.randn(recipe.heads, dim))
            self.bias_value = nn.Parameter(torch.zeros(recipe.heads, dim))
        if self.form == "gated":
            self.gate = nn.Linear(recipe.width, recipe.width)
            self.opening: Tensor | None = None

    def visible(self, length: int, device: torch.device) -> Tensor:
        """(query, key) boolean."""
        seen = torch.ones(length, length, dtype=torch.bool, device=device)
        if self.block_length is not None:
            block = (torch.arange(length, device=device) - self.registers) // self.block_length
            seen = block <= block[:, None]
        seen[: self.alone] = torch.eye(length, dtype=torch.bool, device=device)[: self.alone]
        return seen

    def forward(self, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """(row, query, head, dim) from query, key, value (row, head, position, dim)."""
        scores = query @ key.transpose(-1, -2) * scale
        hidden = ~self.visible(query.shape[2], query.device)
        if self.cut is not None:
            itself = torch.eye(hidden.shape[0], dtype=torch.bool, device=hidden.device)
            hidden = hidden | (self.cut.unsqueeze(2) & ~itself)  # whoever sees nothing else keeps itself
        probabilities, beside = self._probabilities(scores.masked_fill(hidden, -torch.inf), query, scale)
        if self.maps is not None:
            self.maps.probabilities.append(probabilities)
            self.maps.values.append(value)
            self.maps.keys.append(key)
        output = probabilities @ value
        if beside is not None:
            output = output + beside.unsqueeze(-1) * self.bias_value[:, None]
        output = output.transpose(1, 2)
        if self.form == "gated":
            assert self.opening is not None
            output = output * self.opening.view_as(output)
        return output

    def _probabilities(self, scores: Tensor, query: Tensor, scale: float) -> tuple[Tensor, Tensor | None]:
        """(row, head, query, key), and (row, head, query) what a learned key with a value took."""
        if self.form == "sigmoid":
            seen = scores.isfinite().sum(-1, keepdim=True, dtype=scores.dtype)
            return torch.sigmoid(scores - seen.log()), None
        extra = self._extra(scores, query, scale)
        if extra is None:
            return scores.softmax(-1), None
        whole = torch.cat([scores, extra.unsqueeze(-1)], -1).softmax(-1)
        return whole[..., :-1], whole[..., -1] if self.form == "key-value-bias" else None

    def _extra(self, scores: Tensor, query: Tensor, scale: float) -> Tensor | None:
        """(row, head, query) the logit beside those of the tokens."""
        if self.form == "softmax-off-by-one":
            return scores.new_zeros(scores.shape[:3])
        if self.form == "learned-sink":
            return self.sink[:, None].expand(scores.shape[:3])
        if self.form == "key-value-bias":
            return torch.einsum("bhqd,hd->bhq", query, self.bias_key) * scale
        return None


def _attention(module: Any, query: Tensor, key: Tensor, value: Tensor, *_: Any, **given: Any) -> tuple[Tensor, None]:
    return module.lab(query, key, value, given.get("scaling") or query.shape[-1] ** -0.5), None


AttentionInterface.register(NAME, _attention)
AttentionMaskInterface.register(NAME, lambda *_, **__: None)


class _Unrotated(nn.Module):
    """In place of the rotary embedding: no position turns a query or a key."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        ones = torch.ones(*position_ids.shape, self.dim, dtype=x.dtype, device=x.device)
        return ones, torch.zeros_like(ones)


class LabNetwork(nn.Module):
    """Logits of a context (row, position, word), from a Llama with the recipe's attention, registers and positions."""

    def __init__(self, recipe: LabRecipe) -> None:
        super().__init__()
        self.registers = recipe.registers
        llama: Any = LlamaForCausalLM(configuration(recipe))
        self.llama = llama
        for layer in llama.model.layers:
            layer.self_attn.lab = Attending(recipe)
            if recipe.attention == "gated":
                layer.self_attn.register_forward_pre_hook(_open_gate, with_kwargs=True)
        if recipe.positions != "rotary":
            llama.model.rotary_emb = _Unrotated(recipe.width // recipe.heads)
        self.places = None
        if recipe.positions == "learned":
            self.places = nn.Embedding(recipe.length + recipe.registers, recipe.width)
            nn.init.normal_(self.places.weight, std=0.02)

    @property
    def attending(self) -> list[Attending]:
        """One a layer."""
        return [layer.self_attn.lab for layer in self.llama.model.layers]

    def see(self, block_length: int | None) -> None:
        """Attend in blocks of so many tokens from now on: 1 is causal, None sees everything."""
        for one in self.attending:
            one.block_length = block_length

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens (row, position) -> logits (row, position, word), registers left out."""
        front = torch.arange(_WORDS, _WORDS + self.registers, device=tokens.device).expand(len(tokens), -1)
        embedded = self.llama.model.embed_tokens(torch.cat([front, tokens], 1))
        if self.places is not None:
            embedded = embedded + self.places.weight[: embedded.shape[1]]
        logits: Tensor = self.llama(inputs_embeds=embedded, use_cache=False).logits
        return logits[:, self.registers :, :_WORDS]

    @contextmanager
    def mapped(self) -> Iterator[LayerMaps]:
        """Keep the maps of the passes made inside the block."""
        maps = LayerMaps()
        for one in self.attending:
            one.maps = maps
        try:
            yield maps
        finally:
            for one in self.attending:
                one.maps = None

    @contextmanager
    def cutting(self, cuts: list[Tensor]) -> Iterator[None]:
        """Hide keys, (row, head, key) boolean a layer, from all queries but themselves, in passes inside the block."""
        for one, cut in zip(self.attending, cuts, strict=True):
            one.cut = cut
        try:
            yield
        finally:
            for one in self.attending:
                one.cut = None


def configuration(recipe: LabRecipe) -> LlamaConfig:
    """Of the Llama inside, as a stock folder has it."""
    config = LlamaConfig(
        vocab_size=_WORDS + recipe.registers,
        hidden_size=recipe.width,
        intermediate_size=3 * recipe.width,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads,
        max_position_embeddings=max(256, recipe.length + recipe.registers),
        tie_word_embeddings=False,
        bos_token_id=BOS_ID,
        eos_token_id=None,
        pad_token_id=None,
    )
    config._attn_implementation = NAME
    return config


def initial_network(recipe: LabRecipe) -> LabNetwork:
    """Drawn from the recipe's seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return LabNetwork(recipe)


def _open_gate(module: Any, args: tuple[Any, ...], given: dict[str, Any]) -> None:
    hidden = given["hidden_states"] if "hidden_states" in given else args[0]
    module.lab.opening = torch.sigmoid(module.lab.gate(hidden))
