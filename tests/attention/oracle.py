"""Independent oracle: attention in float64, the whole map at once, straight from the definition."""

import torch


def attention_map(query: torch.Tensor, key: torch.Tensor, visible: torch.Tensor | None, scale: float) -> torch.Tensor:
    """Softmax over keys in float64; query (batch, head, query, dim), key (batch, kv_head, key, dim).

    Rows that may see nothing are zero.
    """
    key = key.double().repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    scores = torch.einsum("bhqd,bhkd->bhqk", query.double(), key) * scale
    if visible is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
    exponent = (scores - scores.amax(-1, keepdim=True).clamp(min=-1e300)).exp()
    return exponent / exponent.sum(-1, keepdim=True).clamp(min=1e-300)
