"""Whole networks that are cut and watched at once: against eager attention with additive masks, layer by layer."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from transformers import AlbertConfig, AlbertForMaskedLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from sinkscope.attention import GROUPS, Collect, label_queries, watch
from sinkscope.attention.cutting import cutting
from sinkscope.attention.given import Attention, Cut

BATCH, LENGTH, HEADS = 2, 23, 6
# Eager float32 attention on the other side, three layers deep: see `test_watching.py`.
CLOSE = 2e-5


class EachLayer:
    """Cuts what was laid down for each layer, None for nothing, and keeps what it is told."""

    def __init__(self, cuts: list[Cut | None]) -> None:
        self.cuts = cuts
        self.received: list[torch.Tensor] = []
        self.needs_received = True

    def weights(self, attention: Attention) -> torch.Tensor:
        queries = attention.query.shape[2]
        return torch.full((BATCH, queries), 1 / queries)

    def cut(self, attention: Attention, received: Callable[[], torch.Tensor]) -> Cut | None:
        assert received().shape == (BATCH, HEADS, attention.key.shape[2])
        return self.cuts[len(self.received)]

    def on_layer_end(self, received: torch.Tensor | None, removed: torch.Tensor | None) -> None:
        assert received is not None
        assert (removed is None) == (self.cuts[len(self.received)] is None)
        self.received.append(received)


def _frozen(network: PreTrainedModel) -> PreTrainedModel:
    network.train(False)
    return network.requires_grad_(False)


def llama(*, causal: bool) -> PreTrainedModel:
    config = LlamaConfig(
        hidden_size=48, intermediate_size=71, num_hidden_layers=3, num_attention_heads=HEADS, num_key_value_heads=2,
        vocab_size=101, initializer_range=0.3, use_cache=False,
    )  # fmt: skip
    config.is_causal = causal
    return _frozen(LlamaForCausalLM(config))


def albert() -> PreTrainedModel:
    config = AlbertConfig(
        hidden_size=48, embedding_size=16, intermediate_size=71, num_hidden_layers=3, num_attention_heads=HEADS,
        vocab_size=101, initializer_range=0.3,
    )  # fmt: skip
    return _frozen(AlbertForMaskedLM(config))


NETWORKS = {
    "causal": lambda: llama(causal=True),
    "bidirectional": lambda: llama(causal=False),
    "one module for all layers": albert,
}


def random_cuts() -> list[Cut | None]:
    """Nothing in the second layer; in the others some keys of each head, for some queries in the last."""
    lost = [torch.rand(BATCH, HEADS, LENGTH) < 0.3 for _ in range(2)]
    for one in lost:
        one[..., 0] = False  # a causal row may see no other
    return [Cut(keys=lost[0]), None, Cut(keys=lost[1], queries=torch.rand(BATCH, LENGTH) < 0.7)]


@contextmanager
def eager_under(network: PreTrainedModel, cuts: list[Cut | None]) -> Iterator[None]:
    """Eager attention whose additive mask differs from layer to layer and from head to head."""
    calls = iter(cuts)

    def before(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        cut, mask = next(calls), torch.zeros(BATCH, HEADS, LENGTH, LENGTH)
        if getattr(module, "is_causal", False) and network.config.is_causal is not False:
            mask = mask.masked_fill(torch.ones(LENGTH, LENGTH).triu(1).bool(), -torch.inf)
        if cut is not None:
            gone = cut.keys.unsqueeze(2) & (True if cut.queries is None else cut.queries[:, None, :, None])
            mask = mask.masked_fill(gone, -torch.inf)
        if "attention_mask" in kwargs:
            return args, {**kwargs, "attention_mask": mask}
        return (args[0], mask, *args[2:]), kwargs

    modules = [module for module in network.modules() if type(module).__name__ in ("LlamaAttention", "AlbertAttention")]
    hooks = [module.register_forward_pre_hook(before, with_kwargs=True) for module in modules]
    previous = network.config._attn_implementation
    network.set_attn_implementation("eager")
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        network.set_attn_implementation(previous)


@pytest.mark.parametrize("kernel", ["one-pass", "two-pass"])
@pytest.mark.parametrize("name", NETWORKS)
def test_statistics_and_output_under_a_cut_equal_eager(name: str, kernel: str) -> None:
    network, cuts, tokens = NETWORKS[name](), random_cuts(), torch.randint(0, 101, (BATCH, LENGTH))
    with eager_under(network, cuts):
        expected = network(tokens, output_attentions=True)
    maps = torch.stack(expected.attentions)
    cutter, everything = EachLayer(cuts), Collect(map_layers=(0, 1, 2), entropy=True)
    with watch(network, everything, kernel=kernel) as watched, cutting(cutter):
        logits = network(tokens).logits
    torch.testing.assert_close(logits, expected.logits, atol=2e-3, rtol=2e-3)  # logits of about 20, from float32
    torch.testing.assert_close(watched.received, maps.mean(3), atol=CLOSE, rtol=0)
    torch.testing.assert_close(torch.stack(cutter.received), maps.mean(3), atol=CLOSE, rtol=0)
    for layer, cut in enumerate(cuts):
        seen = watched.last.maps[layer]
        torch.testing.assert_close(seen, maps[layer], atol=CLOSE, rtol=0)
        if cut is not None:
            asked = torch.ones(BATCH, LENGTH, dtype=torch.bool) if cut.queries is None else cut.queries
            assert seen[asked[:, None, :, None] & cut.keys[:, :, None, :]].abs().max() == 0
    assert watched.last.entropy is not None
    torch.testing.assert_close(watched.last.entropy, torch.special.entr(maps).sum(-1), atol=2e-4, rtol=0)


@pytest.mark.parametrize("values", [False, True], ids=["scores", "values"])
def test_watching_changes_nothing_under_a_cut(values: bool) -> None:
    network, tokens = llama(causal=False), torch.randint(0, 101, (BATCH, LENGTH))
    network.set_attn_implementation("sinkscope")
    cuts = [
        None if cut is None else Cut(keys=cut.keys, queries=cut.queries, values_only=values) for cut in random_cuts()
    ]
    with cutting(EachLayer(cuts)):
        alone = network(tokens).logits
    with watch(network, kernel="two-pass"), cutting(EachLayer(cuts)):
        assert torch.equal(network(tokens).logits, alone)
    with watch(network, kernel="one-pass"), cutting(EachLayer(cuts)):  # in layers without a cut not SDPA to the bit
        torch.testing.assert_close(network(tokens).logits, alone, atol=1e-3, rtol=1e-4)
    plain = network(tokens).logits
    assert not torch.equal(plain, alone)
    with cutting(EachLayer([None] * 3)):
        assert torch.equal(network(tokens).logits, plain)


def test_groups_under_a_cut_add_up() -> None:
    network, cuts, tokens = llama(causal=False), random_cuts(), torch.randint(0, 101, (BATCH, LENGTH))
    labels = torch.randint(-1, len(GROUPS), (BATCH, LENGTH))
    with eager_under(network, cuts):
        maps = torch.stack(network(tokens, output_attentions=True).attentions)
    with watch(network, Collect(groups=True)) as watched, label_queries(labels), cutting(EachLayer(cuts)):
        network(tokens)
    split = watched.last.by_group
    assert split is not None
    for row in range(BATCH):
        for group in range(len(GROUPS)):
            member = labels[row] == group
            expected = maps[:, row][:, :, member].mean(2) if member.any() else torch.zeros(3, HEADS, LENGTH)
            torch.testing.assert_close(split[:, row, group], expected, atol=CLOSE, rtol=0)
    torch.testing.assert_close(watched.received.sum(-1), torch.ones(3, BATCH, HEADS))
