"""How many layers and heads a network's attention has: read in one place, since configurations spell it differently."""

from dataclasses import dataclass

from transformers import PreTrainedConfig, PreTrainedModel

from sinkscope.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Counts that attention statistics are laid out by. `kv_heads` is below `heads` for grouped-query attention."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int


def per_layer(config: PreTrainedConfig) -> frozenset[str]:
    """Fields that have a value for each layer (Gemma 4); to ask such a configuration for one value is an error."""
    return frozenset(config.per_layer_attributes or ())


def shape_of(network: PreTrainedModel) -> Shape:
    """The shape of a network's (text) attention. Raises `UserError` for a network without attention heads, or with
    layers of several shapes."""
    config, name = network.config.get_text_config(), type(network).__name__
    several = sorted(per_layer(config) & {"num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size"})
    if several:
        raise UserError(
            f"{name} has layers of several shapes ({', '.join(several)} differ), which sinkscope can't lay out in one "
            "table; take a model whose layers are alike"
        )
    heads = getattr(config, "num_attention_heads", None)
    if type(heads) is not int:
        raise UserError(f"{name} has no attention heads: nothing of it can be watched")
    key_heads = getattr(config, "num_key_value_heads", None) or heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    if type(key_heads) is not int or type(head_dim) is not int:
        raise UserError(
            f"{name}: num_key_value_heads={key_heads!r}, head_dim={head_dim!r}, wanted one whole number each"
        )
    return Shape(layers=int(config.num_hidden_layers), heads=heads, kv_heads=key_heads, head_dim=head_dim)
