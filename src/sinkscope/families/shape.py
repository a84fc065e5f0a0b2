"""How many layers and heads a network's attention has: read in one place, since configurations spell it differently."""

from dataclasses import dataclass

from transformers import PreTrainedModel

from sinkscope.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Counts that attention statistics are laid out by. `kv_heads` is below `heads` for grouped-query attention."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int


def shape_of(network: PreTrainedModel) -> Shape:
    """The shape of a network's (text) attention. Raises `UserError` for a network without attention heads."""
    config = network.config.get_text_config()
    if getattr(config, "num_attention_heads", None) is None:
        raise UserError(f"{type(network).__name__} has no attention heads: nothing of it can be watched")
    heads = int(config.num_attention_heads)
    return Shape(
        layers=int(config.num_hidden_layers),
        heads=heads,
        kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(config, "head_dim", None) or config.hidden_size // heads),
    )
