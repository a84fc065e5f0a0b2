"""Networks as other libraries and users leave them: compiled, wrapped, split, asked for maps, gone out of range."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    DiffLlamaConfig,
    DiffLlamaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from sinkscope.attention import watching
from sinkscope.attention.cutting import cutting
from sinkscope.attention.given import Cut
from sinkscope.attention.watching import watch
from sinkscope.errors import UserError

SIZES: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 71,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "vocab_size": 101,
}


def frozen(network_class: Any, config: PreTrainedConfig, implementation: str = "sinkscope") -> Any:
    return network_class._from_config(config, attn_implementation=implementation).eval().requires_grad_(False).double()


def llama(implementation: str = "sinkscope") -> Any:
    config = LlamaConfig(**SIZES, num_key_value_heads=2, initializer_range=0.3)
    return frozen(LlamaForCausalLM, config, implementation)


def bert(implementation: str = "sinkscope") -> Any:
    config = BertConfig(**SIZES, initializer_range=0.3)
    return frozen(BertForMaskedLM, config, implementation)


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.randint(0, 101, (2, 13))


@pytest.fixture
def compiled() -> Iterator[None]:
    yield
    torch.compiler.reset()


def _called(network: PreTrainedModel) -> Any:
    return torch.compile(network, backend="eager")


def _in_place(network: PreTrainedModel) -> Any:
    network.compile(backend="eager")
    return network


def _forward(network: Any) -> Any:
    network.forward = torch.compile(network.forward, backend="eager")
    return network


def _layers(network: Any) -> Any:
    network.model.layers[0] = torch.compile(network.model.layers[0], backend="eager")
    network.model.layers[1].self_attn.compile(backend="eager")
    attention = network.model.layers[2].self_attn
    attention.forward = torch.compile(attention.forward, backend="eager")
    return network


@pytest.mark.usefixtures("compiled")
@pytest.mark.parametrize("way", [_called, _in_place, _forward, _layers])
def test_a_compiled_network_is_watched_and_cut(way: Callable[[PreTrainedModel], Any], tokens: torch.Tensor) -> None:
    network = llama()
    with watch(network) as plain:
        expected = network(tokens).logits
    run = way(network)
    torch.testing.assert_close(run(tokens).logits, expected)  # its graph is made while nobody watches
    with watch(run) as watched:
        torch.testing.assert_close(run(tokens).logits, expected, rtol=0, atol=0)
    assert torch.equal(watched.received, plain.received)
    cut = torch.zeros(2, 6, 13, dtype=torch.bool)
    cut[:, :, 0] = True
    with cutting(_Always(Cut(keys=cut))):
        assert not torch.allclose(run(tokens).logits[:, -1], expected[:, -1])
    torch.testing.assert_close(run(tokens).logits, expected)


@pytest.mark.usefixtures("compiled")
def test_an_own_module_is_watched_compiled_and_refused_traced() -> None:
    network, images = nn.Sequential(_Attends(), _Attends()).eval().requires_grad_(False), torch.randn(2, 13, 12)
    with watch(network) as plain:
        network(images)
    run: Any = torch.compile(network, backend="eager")
    run(images)
    with watch(run) as watched:
        run(images)
    assert torch.equal(watched.received, plain.received)
    assert list(watched.names) == ["0", "1"]
    exported = torch.export.export(network, (images,)).module()
    with pytest.raises(UserError, match=r"watch the module itself.*exported"), watch(exported):
        exported(images)


def test_a_network_compiled_while_it_is_watched_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "compiler_loaded", lambda: False)
    with watch(llama()) as watched:
        monkeypatch.setattr(watching, "compiler_loaded", lambda: True)
        with pytest.raises(UserError, match="compile it before"):
            watched.take(None)  # as of a pass whose attention ran in a graph


class _Attends(nn.Module):
    """Attention of one's own: 3 heads of 4."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(12, 36)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.mix(x).view(*x.shape[:2], 3, 3, 4).permute(2, 0, 3, 1, 4)
        return x + nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)


class _Always:
    """Cuts the same keys in every layer."""

    needs_received = False

    def __init__(self, cut: Cut) -> None:
        self._cut = cut

    def weights(self, _: Any) -> torch.Tensor:
        raise AssertionError("nothing is looked at")

    def cut(self, _: Any, __: Any) -> Cut:
        return self._cut

    def on_layer_end(self, _: Any, __: Any) -> None: ...


@pytest.mark.parametrize("count", range(5))
def test_arguments_may_come_by_position(count: int, tokens: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    """As kvpress wraps every registered function: (module, query, key, value, mask, dropout, **kwargs)."""
    network = llama()
    expected = network(tokens).logits
    original = ALL_ATTENTION_FUNCTIONS["sinkscope"]
    names = ("dropout", "scaling", "is_causal", "position_bias")[:count]

    def wrapper(module: nn.Module, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> Any:
        placed = [kwargs.pop(name, 0.0 if name == "dropout" else None) for name in names]
        return original(module, query, key, value, mask, *placed, **kwargs)

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "sinkscope", wrapper)
    assert torch.equal(network(tokens).logits, expected)
    with watch(network) as watched:
        network(tokens)
    torch.testing.assert_close(watched.received.sum(-1), torch.ones(3, 2, 6, dtype=torch.float64))


@pytest.mark.parametrize("make", [llama, bert])
@pytest.mark.parametrize("watching", [False, True])
def test_maps_asked_of_the_network_are_those_of_eager(
    make: Callable[..., Any], watching: bool, tokens: torch.Tensor
) -> None:
    # Not in float64: where eager attention takes its softmax in float32, rows of padding become NaN and spread.
    network, eager = make().float(), make("eager").float()
    eager.load_state_dict(network.state_dict())
    mask = torch.ones_like(tokens)
    mask[1, :4] = 0
    expected = eager(tokens, attention_mask=mask, output_attentions=True)
    plain = network(tokens, attention_mask=mask).logits
    if watching:
        with watch(network, kernel="two-pass"):
            got = network(tokens, attention_mask=mask, output_attentions=True)
    else:
        got = network(tokens, attention_mask=mask, output_attentions=True)
    assert torch.equal(got.logits, plain)
    assert len(got.attentions) == len(expected.attentions) == 3
    for ours, theirs in zip(got.attentions, expected.attentions, strict=True):
        # Errors of float32 through three layers.
        torch.testing.assert_close(ours[0], theirs[0], rtol=0, atol=1e-5)
        torch.testing.assert_close(ours[1, :, 4:], theirs[1, :, 4:], rtol=0, atol=1e-5)


def test_two_maps_of_one_layer_are_refused(tokens: torch.Tensor) -> None:
    difference = frozen(DiffLlamaForCausalLM, DiffLlamaConfig(**SIZES, num_key_value_heads=2))
    sizes: dict[str, Any] = {"vocab_size": 101, "d_model": 48, "d_kv": 8, "d_ff": 71, "num_layers": 2, "num_heads": 6}
    two_stacks = frozen(T5ForConditionalGeneration, T5Config(**sizes))
    with torch.no_grad():
        with pytest.raises(UserError, match="6 times in one pass and has 3 layers"), watch(difference):
            difference(tokens)
        with pytest.raises(UserError), watch(two_stacks):
            two_stacks(input_ids=tokens, decoder_input_ids=tokens)


@pytest.mark.parametrize(("dtype", "remedy"), [(torch.float16, "bfloat16"), (torch.bfloat16, "float32")])
def test_a_pass_out_of_range_is_no_observation(dtype: torch.dtype, remedy: str, tokens: torch.Tensor) -> None:
    network = llama().to(dtype)
    network.model.layers[0].mlp.down_proj.weight.fill_(float("inf"))
    name = str(dtype).removeprefix("torch.")
    with watch(network) as watched:
        with pytest.raises(UserError, match=rf"{name} .*attention of layer 1.*{remedy}"):
            network(tokens)
        assert watched.passes == 0
        network.model.layers[0].mlp.down_proj.weight.zero_()
        network(tokens)
    assert bool(watched.received.isfinite().all())


def test_the_first_module_out_of_range_is_named(tokens: torch.Tensor) -> None:
    network = llama()
    assert watching.first_not_finite(network, lambda: network(tokens)) is None
    network.model.layers[2].self_attn.o_proj.weight[0, 0] = torch.nan
    with watch(network) as watched:
        named = watching.first_not_finite(network, lambda: network.forward(tokens))
        network.model.layers[2].self_attn.o_proj.weight[0, 0] = 0
        network(tokens)
    assert named == "model.layers.2.self_attn.o_proj"
    assert watched.passes == 1
