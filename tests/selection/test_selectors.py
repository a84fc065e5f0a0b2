"""Who chooses: selectors see the attention that queries and keys make by the textbook, and chance is fair."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_vits import GATES, HEADS, STOCK, WIDTH, pictures, selective
from transformers import PreTrainedModel

from sinkscope.selection import SELECTORS, SelectiveViT, Selector, find_selector
from sinkscope.selection.budgets import Gate, alphas, gate_counts
from sinkscope.selection.selectors import BlockAttention, GateInput, RandomSelector

LAWS = settings(max_examples=40, deadline=None)
LOOKING = sorted(name for name, kind in SELECTORS.items() if kind.needs_attention)
SHARES = [0.1, 0.35, 0.6, 0.9, 1.0]


@dataclass
class Noting(Selector):
    """Chooses as another selector does, and notes what it was shown."""

    needs_attention = True
    inner: Selector
    notes: list[GateInput] = field(default_factory=list)

    def scores(self, at: GateInput) -> torch.Tensor:
        self.notes.append(at)
        return self.inner.scores(at)


@contextmanager
def projected(model: SelectiveViT, block: int) -> Iterator[tuple[list[torch.Tensor], list[torch.Tensor]]]:
    """Queries and keys of a block, (row, token, width) a call."""
    queries: list[torch.Tensor] = []
    keys: list[torch.Tensor] = []
    named = dict(model.backbone.blocks[block].named_modules())
    hooks = [
        named[f"attention.{name}"].register_forward_hook(lambda _, __, out, taken=taken: taken.append(out))
        for name, taken in [("q_proj", queries), ("k_proj", keys)]
    ]
    yield queries, keys
    for hook in hooks:
        hook.remove()


def by_hand(queries: torch.Tensor, keys: torch.Tensor, there: torch.Tensor) -> BlockAttention:
    """Statistics of all tokens of one row, in float64; there (token,)."""
    q, k = (one[there].double().view(-1, HEADS, WIDTH // HEADS).transpose(0, 1) for one in (queries, keys))
    maps = (q @ k.mT / (WIDTH // HEADS) ** 0.5).softmax(-1)
    return BlockAttention(received=maps.mean((0, 1)), by_class=maps[:, 0].mean(0), key_norm=k.norm(dim=-1).mean(0))


@pytest.mark.parametrize("gate", range(len(GATES)))
@pytest.mark.parametrize("name", STOCK)
def test_what_selectors_see_is_the_attention_of_the_block_before(name: str, gate: int) -> None:
    """Also in ragged batches, where padding neither looks nor is looked at."""
    model, noting = selective(name), Noting(find_selector("received-attention"))
    with projected(model, GATES[gate] - 1) as (queries, keys):
        model(pictures(model.backbone, len(SHARES)), SHARES, selector=noting)
    notes = [at for at in noting.notes if at.place == gate]
    assert len(notes) == len(queries) == len(keys) and (len(notes) > 1) == (gate > 0)
    patches = model.backbone.patches
    lengths = [patches] * len(SHARES) if gate == 0 else gate_counts(alphas(SHARES, 5), len(GATES), patches)[0].tolist()
    for at, q, k in zip(notes, queries, keys, strict=True):
        assert at.attention is not None
        for place, image in enumerate(at.images):
            there = torch.arange(q.shape[1]) < model.head + lengths[image]
            expected = by_hand(q[place], k[place], there)
            for statistic in ("received", "by_class", "key_norm"):
                got = getattr(at.attention, statistic)[place, : lengths[image]].double()
                # single precision, values of order 1 and below
                torch.testing.assert_close(got, getattr(expected, statistic)[model.head :], rtol=1e-5, atol=1e-6)


def scored(name: str) -> list[float]:
    """A selector's scores of three patches that differ in all that can be seen."""
    seen = BlockAttention(
        received=torch.tensor([[0.1, 0.3, 0.2]]),
        by_class=torch.tensor([[0.5, 0.1, 0.2]]),
        key_norm=torch.tensor([[2.0, 3.0, 1.0]]),
    )
    scores = find_selector(name).scores(replace(at_gate(3, [0]), attention=seen))
    return scores[0].tolist()


def at_gate(patches: int, images: list[int], positions: torch.Tensor | None = None) -> GateInput:
    positions = torch.arange(patches).expand(len(images), -1) if positions is None else positions
    tokens = torch.zeros(len(images), positions.shape[1], WIDTH)
    return GateInput(
        gate=Gate(WIDTH),
        place=0,
        budget=tokens[:, 0],
        patches=tokens,
        positions=positions,
        images=images,
        attention=None,
        there=torch.ones_like(positions, dtype=torch.bool),
        sizes=None,
        counts=torch.full((len(images),), patches),
    )


def test_each_selector_ranks_by_what_its_name_says() -> None:
    order = {name: torch.tensor(scored(name)).argsort(descending=True).tolist() for name in LOOKING}
    assert order == {
        "received-attention": [1, 2, 0],
        "cls-attention": [0, 2, 1],
        "key-norm": [2, 0, 1],
        "high-key-norm": [1, 0, 2],
        "evit": [0, 2, 1],
        "received-attention-no-sinks": [1, 2, 0],
        "cls-attention-no-sinks": [0, 2, 1],
        "key-norm-no-sinks": [2, 0, 1],
    }


@pytest.mark.parametrize("name", [name for name in LOOKING if name.endswith("-no-sinks")])
def test_sinks_go_first_and_padding_is_none(name: str) -> None:
    """Patch 5 receives 9 of the 15 that six patches receive, more than 3 above the mean of the others; what stands at
    padding would lift the mean so that it were none."""
    received = torch.tensor([[1.0, 2.0, 1.0, 1.0, 1.0, 9.0, 90.0, 90.0]])
    there = torch.arange(8) < 6
    seen = BlockAttention(received=received, by_class=torch.rand(1, 8), key_norm=torch.rand(1, 8))
    at = replace(at_gate(8, [0]), attention=seen, there=there.unsqueeze(0))
    plain = find_selector(name.removesuffix("-no-sinks")).scores(at)[0]
    scores = find_selector(name).scores(at)[0]
    assert scores[5] == -torch.inf
    assert torch.equal(scores[:5], plain[:5])


@LAWS
@given(st.integers(1, 60), st.integers(0, 10**6), st.integers(0, 2**32 - 1))
def test_an_image_has_one_random_order_in_any_batch_and_at_any_gate(patches: int, image: int, seed: int) -> None:
    """What is left at a later gate ranks as it did before, and beside any other images."""
    draw = torch.Generator().manual_seed(seed)
    scores = RandomSelector().scores(at_gate(patches, [image, image + 1, image]))
    assert torch.equal(scores[0], scores[2])
    left = torch.rand(patches, generator=draw).argsort()[: int(torch.randint(1, patches + 1, (), generator=draw))]
    later = RandomSelector().scores(at_gate(patches, [image], left.sort().values.unsqueeze(0)))
    assert torch.equal(later[0], scores[0, left.sort().values])


def test_random_orders_differ_between_images_and_seeds() -> None:
    drawn = RandomSelector().scores(at_gate(40, list(range(20))))
    again = RandomSelector(seed=1).scores(at_gate(40, list(range(20))))
    both = torch.cat([drawn, again])
    assert len({tuple(row.argsort().tolist()) for row in both}) == 40


def test_chance_favours_no_patch() -> None:
    """A third of 12 patches kept in 6000 images: each about 2000 times, by a binomial standard deviation of 37."""
    scores = RandomSelector().scores(at_gate(12, list(range(6000))))
    kept = torch.zeros(scores.shape).scatter_(1, scores.topk(4).indices, 1.0).sum(0)
    assert float((kept - 2000).abs().max()) < 5 * 37


def test_images_are_told_apart_by_their_numbers_alone() -> None:
    model = selective("vit")
    image = pictures(model.backbone, 1)
    kept = model(image.expand(4, -1, -1, -1), 0.3, selector="random", numbers=[7, 8, 7, 9]).kept.tolist()
    assert kept[0] == kept[2] and kept[0] != kept[1] and kept[1] != kept[3]
    assert model(image, 0.3, selector="random", numbers=[8]).kept[0].tolist() == kept[1]


@pytest.mark.parametrize("name", sorted(SELECTORS))
def test_the_network_is_left_as_it_was(name: str) -> None:
    model = selective("vit")
    network = model.backbone.network
    assert isinstance(network, PreTrainedModel)
    before = network.config._attn_implementation
    model(pictures(model.backbone, 2), 0.5, selector=name)
    assert network.config._attn_implementation == before
    assert all(not module._forward_hooks and not module._forward_pre_hooks for module in network.modules())
