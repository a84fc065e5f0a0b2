"""Soft caps, position biases and learned sinks: kernels and cuts against float64, networks against eager attention."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from cuts import BATCH, DIM, KINDS, OUTPUTS, PROBABILITIES, Fixed, never, oracle, random_attention, random_cut
from transformers import PreTrainedModel

from sinkscope.attention import GROUPS, Collect, label_queries, watch
from sinkscope.attention.cutting import attend, cutting
from sinkscope.attention.function import attention_forward
from sinkscope.attention.given import Attention, Cut
from sinkscope.attention.groups import query_weights
from sinkscope.attention.kernels import KERNELS, chunked_output, output_beside_sink
from sinkscope.attention.statistics import LayerAccumulator

HEADS, QUERIES, KEYS = 6, 37, 53


def changed(attention: Attention, what: str) -> Attention:
    """The same call with changed scores; what: words of those changes."""
    queries, keys, dtype = attention.query.shape[2], attention.key.shape[2], attention.query.dtype
    more: dict[str, Any] = {}
    if "cap" in what:
        more["softcap"] = 1.7  # of scores around 4, so that the cap is felt
    if "bias" in what:
        more["bias"] = (2 * torch.randn(1, HEADS, queries, keys)).to(dtype)
    if "sink" in what:
        more["learned_sink"] = (3 * torch.randn(HEADS)).to(dtype)
    return replace(attention, **more)


CHANGES = ("cap", "bias", "sink", "cap bias sink")
KERNEL_CASES = [(torch.float64, kind) for kind in KINDS] + [
    (dtype, kind) for dtype in (torch.float32, torch.bfloat16, torch.float16) for kind in ("causal", "padding")
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kernel", ["one-pass", "two-pass"])
@pytest.mark.parametrize(("dtype", "kind"), KERNEL_CASES)
def test_kernels_equal_the_oracle(dtype: torch.dtype, kind: str, kernel: str, change: str) -> None:
    plain, visible = random_attention(kind, dtype=dtype)
    attention = changed(plain, change)
    nothing = Cut(keys=torch.zeros(BATCH, HEADS, attention.key.shape[2], dtype=torch.bool))
    expected = oracle(attention, visible, nothing)
    labels = torch.randint(-1, len(GROUPS), (BATCH, QUERIES))
    weights, _ = query_weights(labels, len(GROUPS))
    accumulator = LayerAccumulator(attention, 0, Collect(entropy=True), weights)
    output = KERNELS[kernel](attention, accumulator, lambda: chunked_output(attention))
    seen = accumulator.finish()
    wanted = torch.einsum("bhqk,bgq->bhgk", expected.under, weights.double())
    # `query_weights` are float32 whatever the network is.
    tolerance = max(PROBABILITIES[dtype], 1e-7)
    torch.testing.assert_close(seen.by_group.double(), wanted, atol=tolerance, rtol=0)
    torch.testing.assert_close(output.double(), expected.output, atol=OUTPUTS[dtype], rtol=OUTPUTS[dtype])
    assert (seen.no_key is not None) == ("sink" in change)
    row = expected.under
    if seen.no_key is not None:
        wanted = torch.einsum("bhq,bgq->bhg", expected.no_key, weights.double())
        torch.testing.assert_close(seen.no_key.double(), wanted, atol=tolerance, rtol=0)
        row = torch.cat([row, expected.no_key.unsqueeze(-1)], dim=-1)
    assert seen.entropy is not None
    counted = (labels >= 0).unsqueeze(1).expand(-1, HEADS, -1)
    # An entropy adds up to 54 terms of this error, each times at most log p of a small p.
    entropy = torch.special.entr(row).sum(-1)
    torch.testing.assert_close(seen.entropy.double()[counted], entropy[counted], atol=200 * tolerance, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_an_output_beside_a_sink_equals_the_oracle(dtype: torch.dtype, kind: str) -> None:
    plain, visible = random_attention(kind, dtype=dtype)
    attention = changed(plain, "sink")
    expected = oracle(attention, visible, Cut(keys=torch.zeros(BATCH, HEADS, attention.key.shape[2], dtype=torch.bool)))
    output = output_beside_sink(attention)
    assert output is not None and output.dtype == dtype
    tolerance = 1e-12 if dtype == torch.float64 else 2e-6
    torch.testing.assert_close(output.double(), expected.output, atol=tolerance, rtol=tolerance)
    query = attention.query.clone()
    query[1, 2, -1] = torch.nan
    broken = output_beside_sink(replace(attention, query=query))
    assert broken is not None
    assert bool(broken[1, -1, 2].isnan().all())  # a fault is not hidden
    for other in (changed(attention, "cap"), changed(plain.__class__(**vars(plain)), "bias")):
        assert output_beside_sink(other) is None
    assert output_beside_sink(replace(attention, value=attention.value.requires_grad_())) is None


CUT_CASES = [(torch.float64, kind) for kind in KINDS] + [(torch.float32, "causal"), (torch.bfloat16, "boolean")]


@pytest.mark.parametrize("values", [False, True], ids=["scores", "values"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("dtype", "kind"), CUT_CASES)
def test_a_cut_equals_an_additive_mask(dtype: torch.dtype, kind: str, change: str, values: bool) -> None:
    plain, visible = random_attention(kind, dtype=dtype)
    attention = changed(plain, change)
    cut = random_cut(attention, values=values)
    expected = oracle(attention, visible, cut)
    weights = torch.rand(BATCH, QUERIES)
    cutter = Fixed(cut, weights)
    grouped, _ = query_weights(torch.zeros(BATCH, QUERIES, dtype=torch.long), 1)
    watching = LayerAccumulator(attention, 0, Collect(), grouped)
    output = attend(attention, cutter, never, watching)
    torch.testing.assert_close(output.double(), expected.output, atol=OUTPUTS[dtype], rtol=OUTPUTS[dtype])
    tolerance = max(PROBABILITIES[dtype], 1e-7)
    assert cutter.removed is not None and cutter.received is not None
    torch.testing.assert_close(cutter.removed.double(), expected.removed, atol=tolerance, rtol=0)
    received = torch.einsum("bhqk,bq->bhk", expected.under, weights.double())
    torch.testing.assert_close(cutter.received.double(), received, atol=QUERIES * tolerance, rtol=0)
    no_key = watching.finish().no_key
    assert (no_key is not None) == ("sink" in change)
    if no_key is not None:
        torch.testing.assert_close(no_key[..., 0].double(), expected.no_key.mean(-1), atol=tolerance, rtol=0)


@pytest.mark.parametrize("sink", [-1.0, -200.0])
def test_a_learned_sink_takes_all_where_no_key_is_left(sink: float) -> None:
    """Also one so low that its share was lost to underflow before the cut."""
    plain, visible = random_attention("causal", dtype=torch.float32)
    attention = replace(plain, learned_sink=torch.full((HEADS,), sink))
    cut = Cut(keys=torch.ones(BATCH, HEADS, QUERIES, dtype=torch.bool))
    grouped, _ = query_weights(torch.zeros(BATCH, QUERIES, dtype=torch.long), 1)
    watching = LayerAccumulator(attention, 0, Collect(), grouped)
    output = attend(attention, Fixed(cut, torch.ones(BATCH, QUERIES)), never, watching)
    assert not bool(output.any())
    no_key = watching.finish().no_key
    assert no_key is not None
    torch.testing.assert_close(no_key, torch.ones_like(no_key))
    assert oracle(attention, visible, cut).no_key.min() == 1


def test_gradients_pass_through_changed_scores() -> None:
    plain, visible = random_attention("boolean", dtype=torch.float64)
    attention = changed(plain, "cap bias sink")
    assert attention.bias is not None and attention.learned_sink is not None
    leaves = (attention.query, attention.key, attention.value, attention.bias, attention.learned_sink)
    for leaf in leaves:
        leaf.requires_grad_(True)
    cut = random_cut(attention)
    pull = torch.randn(BATCH, QUERIES, HEADS, DIM, dtype=torch.float64)
    nothing = Cut(keys=torch.zeros_like(cut.keys))
    for found, expected in (
        (chunked_output(attention), oracle(attention, visible, nothing).output),
        (
            attend(attention, Fixed(cut, torch.ones(BATCH, QUERIES)), never, None),
            oracle(attention, visible, cut).output,
        ),
    ):
        gradients = [torch.autograd.grad((one * pull).sum(), leaves, retain_graph=True) for one in (found, expected)]
        for one, other in zip(*gradients, strict=True):
            torch.testing.assert_close(one, other, atol=1e-11, rtol=1e-11)


def test_dropout_drops_shares_and_scales_the_rest() -> None:
    plain, _ = random_attention("none", dtype=torch.float32)
    attention = changed(plain, "cap sink")
    module = torch.nn.Module()
    call = (module, attention.query, attention.key, attention.value, None)
    more: dict[str, Any] = {"softcap": attention.softcap, "s_aux": attention.learned_sink, "is_causal": False}
    sure, _ = attention_forward(*call, scaling=attention.scale, **more)
    torch.testing.assert_close(sure, chunked_output(attention))
    drawn = torch.stack([attention_forward(*call, scaling=attention.scale, dropout=0.3, **more)[0] for _ in range(400)])
    assert not torch.equal(drawn[0], drawn[1])
    error = (drawn.mean(0) - sure).abs() / drawn.std(0).clamp(min=1e-6) * 20  # in standard errors of the mean
    assert error.mean() < 1.2  # 0.8 is expected of a normal variable


SMALL: dict[str, Any] = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 40,  # grouped products of experts need rows of 16 bytes
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "initializer_range": 0.3,
    "max_position_embeddings": 64,
    "sliding_window": 5,
    "use_cache": False,
}


def gpt_oss() -> PreTrainedModel:
    experts: dict[str, Any] = {"num_local_experts": 3, "num_experts_per_tok": 2}
    rope = {"rope_type": "default", "rope_theta": 1e4}
    return transformers.GptOssForCausalLM(transformers.GptOssConfig(**SMALL, **experts, rope_parameters=rope))


def gemma2() -> PreTrainedModel:
    config = transformers.Gemma2Config(**SMALL, attn_logit_softcapping=2.0, query_pre_attn_scalar=12)
    return transformers.Gemma2ForCausalLM(config)


def t5_encoder() -> PreTrainedModel:
    config = transformers.T5Config(
        vocab_size=101, d_model=48, d_kv=8, d_ff=37, num_layers=3, num_heads=6, relative_attention_num_buckets=8
    )
    network = transformers.T5EncoderModel(config)
    for name, weight in network.named_parameters():
        if "relative_attention_bias" in name:
            torch.nn.init.normal_(weight, std=2.0)
    return network


NETWORKS: dict[str, Callable[[], PreTrainedModel]] = {"gpt-oss": gpt_oss, "gemma 2": gemma2, "t5 encoder": t5_encoder}


def padded_batch() -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(3, 101, (3, 23))
    mask = torch.ones_like(tokens)
    mask[1, :7] = 0
    mask[2, :2] = 0
    return tokens, mask


def made(name: str) -> PreTrainedModel:
    network = NETWORKS[name]()
    network.train(False)
    return network.requires_grad_(False)


def test_layers_of_several_shapes_keep_what_each_has() -> None:
    """Gemma 4: the size of a head differs. Laguna: their number does."""
    small: dict[str, Any] = {**SMALL, "num_hidden_layers": 3}
    sizes: dict[str, Any] = {"global_head_dim": 20, "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0}
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    gemma4 = transformers.Gemma4TextConfig(**small, **sizes, layer_types=[*kinds[:2], "full_attention"])
    laguna = transformers.LagunaConfig(
        **small, layer_types=kinds, num_attention_heads_per_layer=[6, 4, 6], num_experts=2, num_experts_per_tok=1,
        moe_intermediate_size=16, shared_expert_intermediate_size=16,
    )  # fmt: skip
    tokens = torch.randint(3, 101, (2, 13))
    for network, heads in (
        (transformers.Gemma4ForCausalLM(gemma4), (6, 6, 6)),
        (transformers.LagunaForCausalLM(laguna), (6, 4, 6)),
    ):
        network.train(False)
        network.requires_grad_(False)
        with watch(network, Collect(norms=True, entropy=True, outputs=True)) as watched:
            network(tokens)
        network.set_attn_implementation("eager")
        maps = network(tokens, output_attentions=True).attentions
        seen = watched.last
        assert seen.entropy is not None and seen.outputs is not None and seen.key_norm is not None
        assert seen.received.shape == (3, 2, 6, 13) and seen.key_norm.shape == (3, 2, 2, 13)
        for layer, there in enumerate(heads):
            torch.testing.assert_close(seen.received[layer, :, :there], maps[layer].mean(2), atol=1e-5, rtol=0)
            assert bool(seen.received[layer, :, there:].isnan().all())
            assert bool(seen.entropy[layer, :, there:].isnan().all())
            assert bool((seen.outputs.top[layer, :, there:] == -1).all())
        if min(heads) < 6:
            network.set_attn_implementation("sdpa")
            with watch(network, Collect(map_layers=(0, 1), map_heads=(5, 1))) as watched:
                network(tokens)
            for layer in (0, 1):
                kept = watched.last.maps[layer]
                torch.testing.assert_close(kept[:, 1], maps[layer][:, 1], atol=1e-5, rtol=0)
                assert bool(kept[:, 0].isnan().all()) == (layer == 1)
            torch.testing.assert_close(watched.last.maps[0][:, 0], maps[0][:, 5], atol=1e-5, rtol=0)


def test_layers_that_see_the_last_tokens_alone() -> None:
    """Gemma 4's layers that share keys leave out the tokens whose logits nobody wants: means are over the others."""
    own: dict[str, Any] = {
        "num_kv_shared_layers": 2, "global_head_dim": 20, "hidden_size_per_layer_input": 8,
        "vocab_size_per_layer_input": 101, "layer_types": ["sliding_attention", "full_attention"] * 2,
    }  # fmt: skip
    config = transformers.Gemma4TextConfig(**SMALL, **own)
    network: Any = transformers.Gemma4ForCausalLM(config)
    network.train(False)
    network.requires_grad_(False)
    tokens = torch.randint(3, 101, (2, 13))
    network.set_attn_implementation("eager")
    eager = network(tokens, output_attentions=True)
    network.set_attn_implementation("sdpa")
    for wanted in (1, 3):
        network.set_attn_implementation("sinkscope")
        unwatched = network(tokens, logits_to_keep=wanted).logits
        with watch(network, Collect(entropy=True)) as watched:
            logits = network(tokens, logits_to_keep=wanted).logits
        for one in (unwatched, logits):
            torch.testing.assert_close(one, eager.logits[:, -wanted:], atol=1e-4, rtol=1e-3)
        assert watched.last.entropy is not None
        for layer, maps in enumerate(eager.attentions):
            rows = maps if layer < 2 else maps[:, :, -wanted:]
            torch.testing.assert_close(watched.received[layer], rows.mean(2), atol=1e-5, rtol=0)
            entropy = torch.special.entr(rows).sum(-1)
            torch.testing.assert_close(watched.last.entropy[layer, ..., -rows.shape[2] :], entropy, atol=1e-4, rtol=0)
            assert bool(watched.last.entropy[layer, ..., : 13 - rows.shape[2]].isnan().all())


@pytest.mark.parametrize("kernel", ["one-pass", "two-pass"])
@pytest.mark.parametrize("name", NETWORKS)
def test_networks_equal_their_own_eager_attention(name: str, kernel: str) -> None:
    network = made(name)
    tokens, mask = padded_batch()
    network.set_attn_implementation("eager")
    eager = network(tokens, attention_mask=mask, output_attentions=True)
    network.set_attn_implementation("sinkscope")
    unwatched = network(tokens, attention_mask=mask)[0]
    with watch(network, kernel=kernel) as watched:
        output = network(tokens, attention_mask=mask)[0]
    assert torch.equal(output, unwatched) or kernel == "one-pass"
    maps = torch.stack(eager.attentions)
    for row in range(3):
        real = mask[row].bool()
        # float32 on both sides: sums of a few hundred products in another order, some layers of them.
        torch.testing.assert_close(output[row, real], eager[0][row, real], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(unwatched[row, real], eager[0][row, real], atol=1e-4, rtol=1e-4)
        expected = maps[:, row][:, :, real]
        torch.testing.assert_close(watched.received[:, row], expected.mean(2), atol=1e-5, rtol=0)
        if name == "gpt-oss":
            assert watched.no_key is not None
            torch.testing.assert_close(watched.no_key[:, row], 1 - expected.sum(-1).mean(-1), atol=1e-5, rtol=0)
            assert watched.no_key.max() > 0.05
        else:
            assert watched.no_key is None


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_in_half_precision(name: str) -> None:
    """Against the same weights in float32: attention of bfloat16 queries and keys, 8 bits each, through some layers."""
    network: Any = made(name)
    tokens, mask = padded_batch()
    network.set_attn_implementation("eager")
    weights = {key: value.to(torch.bfloat16).float() for key, value in network.state_dict().items()}
    network.load_state_dict(weights)
    first = network(tokens, attention_mask=mask, output_attentions=True).attentions[0]
    with watch(network.to(torch.bfloat16)) as watched:
        network(tokens, attention_mask=mask)
    for row in range(3):
        real = mask[row].bool()
        expected = first[row][:, real].mean(1)
        torch.testing.assert_close(watched.received[0, row].float(), expected, atol=1e-2, rtol=0)


def test_what_goes_to_no_key_is_split_by_group_and_with_keys_makes_one() -> None:
    network = made("gpt-oss")
    tokens, mask = padded_batch()
    labels = torch.randint(0, len(GROUPS), tokens.shape).masked_fill(mask == 0, -1)
    with watch(network, Collect(groups=True)) as watched, label_queries(labels):
        network(tokens, attention_mask=mask)
    seen = watched.last
    assert seen.no_key is not None and seen.no_key_by_group is not None and seen.by_group is not None
    # layer, batch, group, head
    assert seen.no_key_by_group.shape == (4, 3, len(GROUPS), 6)
    whole = seen.no_key_by_group + seen.by_group.sum(-1)
    present = (seen.queries > 0).view(1, 3, len(GROUPS), 1).expand_as(whole)
    torch.testing.assert_close(whole[present], torch.ones_like(whole[present]))
    torch.testing.assert_close(seen.no_key + seen.received.sum(-1), torch.ones(4, 3, 6))
    share = seen.queries / seen.queries.sum(-1, keepdim=True)
    torch.testing.assert_close(torch.einsum("lbgh,bg->lbh", seen.no_key_by_group, share), seen.no_key)


@pytest.mark.parametrize("name", ["gpt-oss", "gemma 2"])
def test_a_cached_pass_equals_the_whole_one(name: str) -> None:
    network = made(name)
    tokens = torch.randint(3, 101, (2, 17))
    with watch(network, Collect(map_layers=(1,))) as watched:
        network(tokens)
        whole, no_key = watched.last.maps[1], watched.last.no_key
        cache = network(tokens[:, :16], use_cache=True).cache
        network(tokens[:, 16:], cache=cache, use_cache=True)
    last = watched.last.maps[1]
    torch.testing.assert_close(last, whole[:, :, 16:, -last.shape[-1] :], atol=1e-5, rtol=0)
    assert (no_key is None) == (watched.no_key is None)
    with cutting(Fixed(None, torch.ones(2, 17))):
        torch.testing.assert_close(network(tokens)[0], network(tokens)[0])


@pytest.mark.parametrize("name", ["gpt-oss", "gemma 2"])
def test_a_key_cut_in_all_layers_is_one_hidden_by_the_mask(name: str) -> None:
    network = made(name)
    tokens = torch.randint(3, 101, (2, 17))
    mask = torch.ones_like(tokens)
    mask[:, 0] = 0
    network.set_attn_implementation("eager")
    expected = network(tokens, attention_mask=mask).logits
    keys = torch.zeros(2, HEADS, 17, dtype=torch.bool)
    keys[..., 0] = True
    with watch(network), cutting(Fixed(Cut(keys=keys), torch.ones(2, 17))):
        found = network(tokens).logits
    # The first query has no other key; nobody sees its own.
    torch.testing.assert_close(found[:, 1:], expected[:, 1:], atol=1e-4, rtol=1e-4)
