"""Watching whole networks: against eager attention in float64, and without a trace left behind."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    OPTConfig,
    OPTForCausalLM,
    PreTrainedModel,
)
from transformers.models.llama.modeling_llama import LlamaAttention

from sinkscope.attention import GROUPS, Collect, label_queries, watch
from sinkscope.errors import UserError
from sinkscope.families import Model


def _frozen(network: PreTrainedModel) -> PreTrainedModel:
    network.train(False)
    return network.requires_grad_(False)


def llama(*, causal: bool) -> PreTrainedModel:
    config = LlamaConfig(
        hidden_size=48,
        intermediate_size=71,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        vocab_size=101,
        initializer_range=0.3,
        use_cache=False,
    )
    config.is_causal = causal
    return _frozen(LlamaForCausalLM(config))


def mistral() -> PreTrainedModel:
    config = MistralConfig(
        hidden_size=48,
        intermediate_size=71,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        vocab_size=101,
        initializer_range=0.3,
        sliding_window=5,
    )
    return _frozen(MistralForCausalLM(config))


def albert() -> PreTrainedModel:
    config = AlbertConfig(
        hidden_size=48,
        embedding_size=16,
        intermediate_size=71,
        num_hidden_layers=4,
        num_attention_heads=6,
        vocab_size=101,
        initializer_range=0.3,
    )
    return _frozen(AlbertForMaskedLM(config))


def modernbert() -> PreTrainedModel:
    config = ModernBertConfig(
        hidden_size=48,
        intermediate_size=71,
        num_hidden_layers=3,
        num_attention_heads=6,
        vocab_size=101,
        initializer_range=0.3,
        local_attention=6,
        pad_token_id=0,
        cls_token_id=1,
        sep_token_id=2,
        bos_token_id=1,
        eos_token_id=2,
    )
    return _frozen(ModernBertForMaskedLM(config))


NETWORKS: dict[str, Callable[[], PreTrainedModel]] = {
    "llama": lambda: llama(causal=True),
    "bidirectional llama": lambda: llama(causal=False),
    "mistral": mistral,
    "albert": albert,
    "modernbert": modernbert,
}


def eager_maps(network: PreTrainedModel, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """(layer, batch, head, query, key) from transformers' eager attention."""
    before = network.config._attn_implementation
    network.set_attn_implementation("eager")
    maps = network(tokens, attention_mask=mask, output_attentions=True).attentions
    network.set_attn_implementation(before)
    return torch.stack(maps)


@pytest.mark.parametrize("kernel", ["one-pass", "two-pass"])
@pytest.mark.parametrize("name", NETWORKS)
def test_received_attention_of_a_padded_batch_equals_eager(name: str, kernel: str) -> None:
    network = NETWORKS[name]()
    tokens = torch.randint(3, 101, (3, 23))
    mask = torch.ones_like(tokens)
    mask[1, :7] = 0
    mask[2, :2] = 0
    with watch(network, Collect(map_layers=(1,)), kernel=kernel) as watched:
        network(tokens, attention_mask=mask)
    maps = eager_maps(network, tokens, mask)
    for row in range(3):
        real = mask[row].bool()
        expected = maps[:, row][:, :, real].mean(2)
        # float32 eager attention on both sides: sums of a few hundred products in another order.
        torch.testing.assert_close(watched.received[:, row], expected, atol=2e-5, rtol=0)
        assert watched.received[:, row][..., ~real].abs().max() == 0 if (~real).any() else True
        torch.testing.assert_close(watched.last.maps[1][row][:, real], maps[1, row][:, real], atol=2e-5, rtol=0)
    torch.testing.assert_close(watched.received.sum(-1), torch.ones(len(maps), 3, 6))


@pytest.mark.parametrize("folder", ["llada-tiny", "llada-gqa-tiny", "mmada-tiny", "dream-tiny"])
@pytest.mark.parametrize("kernel", ["one-pass", "two-pass"])
def test_received_attention_equals_the_reference(
    tiny: Callable[[str], Model], fixtures: Path, folder: str, kernel: str
) -> None:
    model = tiny(folder)
    reference = load_file(fixtures / folder / "forward.safetensors")
    with watch(model, kernel=kernel) as watched:
        model.network(reference["input_ids"])
    expected = reference["attention"].double().mean(-2)
    # The file holds the maps in float16 (2.5e-4 each); a mean over 37 rows is no worse.
    torch.testing.assert_close(watched.received.double(), expected, atol=2.5e-4, rtol=0)
    if "padded_attention" not in reference:
        return
    mask = reference["padded_attention_mask"]
    with watch(model, kernel=kernel) as watched:
        model.network(reference["padded_input_ids"], attention_mask=mask)
    for row in range(2):
        real = mask[row].bool()
        expected = reference["padded_attention"][:, row][:, :, real].double().mean(2)
        torch.testing.assert_close(watched.received[:, row].double(), expected, atol=2.5e-4, rtol=0)


@pytest.mark.parametrize("previous", ["sdpa", "eager", "sinkscope"])
def test_nothing_is_left_behind(previous: str) -> None:
    network = llama(causal=False)
    network.set_attn_implementation(previous)
    tokens = torch.randint(0, 101, (1, 19))
    before = network(tokens).logits
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in network.modules()]

    def fail_while_watching() -> None:
        with watch(network):
            network(tokens)
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        fail_while_watching()
    assert network.config._attn_implementation == previous
    assert [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in network.modules()] == hooks
    assert torch.equal(network(tokens).logits, before)
    with watch(network) as again:
        network(tokens)
    assert again.passes == 1


def test_unwatched_sinkscope_attention_is_sdpa_bit_for_bit() -> None:
    for causal in (True, False):
        network = llama(causal=causal)
        tokens = torch.randint(0, 101, (2, 31))
        mask = torch.ones_like(tokens)
        mask[0, :5] = 0
        for given in (None, mask):
            network.set_attn_implementation("sdpa")
            plain = network(tokens, attention_mask=given).logits
            network.set_attn_implementation("sinkscope")
            assert torch.equal(network(tokens, attention_mask=given).logits, plain)


@pytest.mark.parametrize("kernel", ["one-pass", "two-pass"])
def test_direction_survives_watching(kernel: str) -> None:
    """A lost `is_causal=False`, or a missing mask function, would turn the model causal in silence."""
    for causal in (True, False):
        network = llama(causal=causal)
        tokens = torch.randint(0, 101, (1, 19))
        changed = tokens.clone()
        changed[0, -1] = (changed[0, -1] + 1) % 101
        with watch(network, kernel=kernel) as watched:
            first, second = network(tokens).logits, network(changed).logits
        assert torch.equal(first[0, 0], second[0, 0]) == causal
        above = watched.received[:, 0, :, -1] * 19  # the last key is seen by one query only if causal
        assert bool((above < 1).all()) or not causal


def test_groups_add_up_to_the_whole_and_padding_counts_for_nothing() -> None:
    network = llama(causal=False)
    tokens = torch.randint(0, 101, (2, 29))
    mask = torch.ones_like(tokens)
    mask[1, :11] = 0
    labels = torch.randint(0, len(GROUPS), (2, 29)).masked_fill(mask == 0, -1)
    with watch(network, Collect(groups=True)) as watched, label_queries(labels):
        network(tokens, attention_mask=mask)
    split, sizes = watched.last.by_group, watched.last.queries
    assert split is not None
    assert sizes.sum(-1).tolist() == [29, 18]
    whole = torch.einsum("lbghk,bg->lbhk", split, sizes / sizes.sum(-1, keepdim=True))
    torch.testing.assert_close(whole, watched.received, atol=1e-6, rtol=0)
    maps = eager_maps(network, tokens, mask)
    for group in range(len(GROUPS)):
        member = labels[1] == group
        if member.any():
            torch.testing.assert_close(split[:, 1, group], maps[:, 1][:, :, member].mean(2), atol=2e-5, rtol=0)


def test_labels_without_a_split_still_leave_out_padding() -> None:
    network = llama(causal=False)
    tokens = torch.randint(0, 101, (1, 17))
    labels = torch.zeros(1, 17, dtype=torch.long)
    labels[0, 5:] = -1
    with watch(network) as watched, label_queries(labels):
        network(tokens)
    maps = eager_maps(network, tokens, torch.ones_like(tokens))
    torch.testing.assert_close(watched.received, maps[:, :, :, :5].mean(3), atol=2e-5, rtol=0)
    assert watched.last.by_group is None


def test_fewer_queries_than_keys_with_a_cache() -> None:
    network = llama(causal=True)
    network.config.use_cache = True
    tokens = torch.randint(0, 101, (2, 23))
    with watch(network) as watched:
        cache = network(tokens[:, :13]).cache
        network(tokens[:, 13:], cache=cache)
    assert watched.passes == 2
    maps = eager_maps(network, tokens, torch.ones_like(tokens))
    torch.testing.assert_close(watched.received, maps[:, :, :, 13:].mean(3), atol=2e-5, rtol=0)


def test_sliding_cache_keys_are_the_last_positions() -> None:
    network = mistral()
    tokens = torch.randint(0, 101, (1, 17))
    with watch(network) as watched:
        cache = network(tokens[:, :16], use_cache=True).cache
        network(tokens[:, 16:], cache=cache, use_cache=True)
    maps = eager_maps(network, tokens, torch.ones_like(tokens))
    last = watched.received
    torch.testing.assert_close(last, maps[:, :, :, 16, -last.shape[-1] :], atol=2e-5, rtol=0)


def test_user_mistakes_get_one_line() -> None:
    network = llama(causal=False)
    with (
        pytest.raises(UserError, match=r"no layer 3: this model has layers 0 to 2"),
        watch(network, Collect(map_layers=(3,))),
    ):
        pass
    with (
        pytest.raises(UserError, match=r"no head -1: this model has heads 0 to 5"),
        watch(network, Collect(map_layers=(0,), map_heads=(-1,))),
    ):
        pass
    with (
        pytest.raises(UserError, match=r"unknown attention kernel 'quick'; choose one of"),
        watch(network, kernel="quick"),
    ):
        pass
    with watch(network) as watched:
        with pytest.raises(UserError, match="nothing was watched yet"):
            _ = watched.received
        with pytest.raises(UserError, match="watched already"), watch(network):
            pass


@pytest.mark.parametrize("kernel", ["one-pass", "two-pass"])
@pytest.mark.parametrize("kind", ["boolean", "infinite", "lowest"])
def test_padding_counts_for_nothing_under_a_mask_of_four_dimensions(kernel: str, kind: str) -> None:
    network = llama(causal=False)
    network.set_attn_implementation("sinkscope")
    tokens = torch.randint(0, 101, (2, 13))
    flat = torch.ones_like(tokens)
    flat[1, :4] = 0
    visible = flat.bool().view(2, 1, 1, 13) & flat.bool().view(2, 1, 13, 1)
    low = {"infinite": -torch.inf, "lowest": torch.finfo(torch.float32).min}.get(kind, 0.0)
    mask = visible if kind == "boolean" else torch.zeros(visible.shape).masked_fill(~visible, low)
    with watch(network, kernel=kernel) as watched:
        network(tokens, attention_mask=flat)
        expected = watched.received
        network(tokens, attention_mask=mask)
    assert watched.last.queries.flatten().tolist() == [13, 9]
    torch.testing.assert_close(watched.received, expected, atol=2e-6, rtol=0)


def test_dropout_in_training_is_that_of_sdpa() -> None:
    network = llama(causal=True)
    network.config.attention_dropout = 0.5
    for module in network.modules():
        if isinstance(module, LlamaAttention):
            module.attention_dropout = 0.5
    network.train()
    tokens = torch.randint(0, 101, (1, 13))
    torch.manual_seed(1)
    plain = network(tokens).logits
    torch.manual_seed(1)
    with watch(network):
        assert torch.equal(network(tokens).logits, plain)


def test_gradients_flow_and_statistics_hold_no_graph() -> None:
    network = llama(causal=False)
    network.requires_grad_(True)
    tokens = torch.randint(0, 101, (2, 13))
    mask = torch.ones_like(tokens)
    mask[1, :4] = 0
    with watch(network, Collect(norms=True, entropy=True)) as watched:
        network(tokens, attention_mask=mask).logits.sum().backward()
    assert not watched.received.requires_grad
    assert watched.last.key_norm is not None
    assert not watched.last.key_norm.requires_grad
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in network.parameters())


def test_a_body_called_by_itself_is_watched_too_and_a_failed_pass_is_forgotten() -> None:
    network = llama(causal=False)
    tokens = torch.randint(0, 101, (1, 13))
    with watch(network) as watched:
        network.base_model(tokens)
        alone = watched.received
        with pytest.raises(IndexError):
            network(torch.full_like(tokens, 5000))
        network(tokens)
    assert watched.passes == 2
    assert torch.equal(alone, watched.received)
    body = network.base_model
    assert isinstance(body, PreTrainedModel)
    with watch(body), pytest.raises(UserError, match="watched already"), watch(network):
        pass


def test_networks_whose_head_goes_past_the_body_are_watched() -> None:
    config = OPTConfig(
        hidden_size=48, ffn_dim=71, num_hidden_layers=2, num_attention_heads=6, vocab_size=101, word_embed_proj_dim=48,
        max_position_embeddings=64,
    )  # fmt: skip
    network = _frozen(OPTForCausalLM(config))
    tokens = torch.randint(3, 101, (1, 13))
    with watch(network) as watched:
        network(tokens)
    maps = eager_maps(network, tokens, torch.ones_like(tokens))
    torch.testing.assert_close(watched.received, maps.mean(3), atol=2e-5, rtol=0)


def test_labels_that_do_not_fit_are_refused() -> None:
    network = llama(causal=False)
    tokens = torch.randint(0, 101, (1, 13))
    for labels, message in (
        (torch.zeros(1, 12, dtype=torch.long), r"labels have the shape \(1, 12\), this pass has 1 rows of 13 queries"),
        (torch.full((1, 13), 7), "labels must lie between -1 and 4, got 7 to 7"),
    ):
        with watch(network), label_queries(labels), pytest.raises(UserError, match=message):
            network(tokens)
    with watch(network) as watched, pytest.raises(UserError, match="no layer 7"):
        watched.collect = Collect(map_layers=(7,))
