"""Llama and Qwen2 written out in float64, one text at a time, without batches, padding or caches.

Attention goes through a function from scores to probabilities, so that a test can say in a few lines what an
intervention is meant to do to each row.
"""

from collections.abc import Callable

import torch
from transformers import PreTrainedModel

Attending = Callable[[int, torch.Tensor], torch.Tensor]
"""(layer, scores (head, query, key), -inf where a key is hidden) -> probabilities of the same shape."""


def plain(_: int, scores: torch.Tensor) -> torch.Tensor:
    """Attention as it is."""
    return scores.softmax(-1)


def logits_of(
    network: PreTrainedModel, tokens: list[int], *, causal: bool, attending: Attending = plain
) -> torch.Tensor:
    """(position, token) float64."""
    weights = {name: value.double() for name, value in network.state_dict().items()}
    config = network.config
    hidden = weights["model.embed_tokens.weight"][tokens]
    for layer in range(config.num_hidden_layers):
        own = {
            name.split(f"layers.{layer}.")[1]: value for name, value in weights.items() if f"layers.{layer}." in name
        }
        normed = _norm(hidden, own["input_layernorm.weight"], config.rms_norm_eps)
        hidden = hidden + _attention(config, own, normed, causal, lambda scores, at=layer: attending(at, scores))  # type: ignore[misc]
        normed = _norm(hidden, own["post_attention_layernorm.weight"], config.rms_norm_eps)
        gate = torch.nn.functional.silu(normed @ own["mlp.gate_proj.weight"].T)
        hidden = hidden + (gate * (normed @ own["mlp.up_proj.weight"].T)) @ own["mlp.down_proj.weight"].T
    normed = _norm(hidden, weights["model.norm.weight"], config.rms_norm_eps)
    logits: torch.Tensor = normed @ weights["lm_head.weight"].T
    return logits


def _norm(hidden: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return hidden / (hidden.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def _attention(
    config: object,
    own: dict[str, torch.Tensor],
    hidden: torch.Tensor,
    causal: bool,
    attending: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    heads = config.num_attention_heads  # type: ignore[attr-defined]
    kv_heads = config.num_key_value_heads  # type: ignore[attr-defined]
    length = len(hidden)

    def projected(name: str, count: int) -> torch.Tensor:
        flat = hidden @ own[f"self_attn.{name}.weight"].T + own.get(f"self_attn.{name}.bias", torch.tensor(0.0))
        return flat.view(length, count, -1).transpose(0, 1)

    theta = config.rope_parameters["rope_theta"]  # type: ignore[attr-defined]
    query = _rotated(projected("q_proj", heads), theta)
    key = _rotated(projected("k_proj", kv_heads), theta).repeat_interleave(heads // kv_heads, 0)
    value = projected("v_proj", kv_heads).repeat_interleave(heads // kv_heads, 0)
    scores = query @ key.transpose(1, 2) / query.shape[-1] ** 0.5
    if causal:
        scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), -torch.inf)
    mixed = (attending(scores) @ value).transpose(0, 1).reshape(length, -1)
    return mixed @ own["self_attn.o_proj.weight"].T + own.get("self_attn.o_proj.bias", torch.tensor(0.0))


def _rotated(states: torch.Tensor, theta: float) -> torch.Tensor:
    half = states.shape[-1] // 2
    speeds = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = torch.arange(states.shape[1], dtype=torch.float64).unsqueeze(-1) * speeds
    first, second = states[..., :half], states[..., half:]
    return torch.cat(
        [first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], dim=-1
    )


def strongest(row: torch.Tensor, k: int) -> list[int]:
    """The k largest entries."""
    return sorted(range(len(row)), key=lambda place: -float(row[place]))[:k]


def without(scores: torch.Tensor, lost: list[int]) -> torch.Tensor:
    """Softmax of one row of scores without some keys; with them where no other is left."""
    hidden = scores.clone()
    hidden[lost] = -torch.inf
    return scores.softmax(-1) if bool((hidden == -torch.inf).all()) else hidden.softmax(-1)


def row_by_row(k: int, prefix: int, source: str, maps: dict[int, torch.Tensor]) -> Attending:
    """The published protocol for an autoregressive model: every row after the prefix loses the k strongest keys of the
    row before. source: "masked", the row as it was masked itself; "clean", from `maps` (head, query, key) of each
    layer; "same", the row's own keys before the mask."""

    def attending(layer: int, scores: torch.Tensor) -> torch.Tensor:
        done = scores.softmax(-1)
        for head in range(len(scores)):
            for row in range(prefix, scores.shape[1]):
                seen = {"masked": done[head, row - 1], "same": done[head, row]}.get(source)
                seen = maps[layer][head, row - 1] if seen is None else seen
                known = seen[: row + 1] if source == "same" else seen[:row]
                done[head, row] = without(scores[head, row], strongest(known, k))
        return done

    return attending


def at_once(k: int, causal: bool) -> Attending:
    """All rows lose the k strongest keys of the same pass: by the last row if causal, else by the mean of all rows."""

    def attending(_: int, scores: torch.Tensor) -> torch.Tensor:
        done = scores.softmax(-1)
        for head in range(len(scores)):
            lost = strongest(done[head, -1] if causal else done[head].mean(0), k)
            done[head] = torch.stack([without(row, lost) for row in scores[head]])
        return done

    return attending


def maps_of(network: PreTrainedModel, tokens: list[int], *, causal: bool) -> dict[int, torch.Tensor]:
    """Plain attention (head, query, key) of each layer."""
    found: dict[int, torch.Tensor] = {}

    def attending(layer: int, scores: torch.Tensor) -> torch.Tensor:
        found[layer] = scores.softmax(-1)
        return found[layer]

    logits_of(network, tokens, causal=causal, attending=attending)
    return found
