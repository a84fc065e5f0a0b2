"""The whole of inference: the budget kept, the same result alone and in any batch, and what is dropped is gone.

The oracle is a pass over one picture at full length in float64, with the mask and the choice worked out by hand.
"""

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_vits import BACKBONES, BLOCKS, GATES, SPLIT, pictures, selective

from sinkscope.selection import MODES, SELECTORS, Link, SelectiveViT, find_channel
from sinkscope.selection.modes import LEAST

SHARES = [0.05, 0.3, 0.35, 0.6, 0.95, 1.0]
SAME = 1e-5
"""Between passes that add up in another order, in single precision, of logits of order 1."""
each_network = pytest.mark.parametrize("name", BACKBONES)
WAYS = [
    (network, mode, selector)
    for network, mode, selector in itertools.product(BACKBONES, sorted(MODES), sorted(SELECTORS))
    if selector == "gates" or (mode == "exact" and network in ("vit", "taught deit"))
]
"""The gates in every network and mode; the other selectors with one prefix token and with two."""


@contextmanager
def tokens_counted(model: SelectiveViT) -> Iterator[list[dict[int, int]]]:
    """For every block, tokens a row -> rows that came so long."""
    counted: list[dict[int, int]] = [{} for _ in range(BLOCKS)]

    def count(block: int, tokens: torch.Tensor) -> None:
        counted[block][tokens.shape[1]] = counted[block].get(tokens.shape[1], 0) + len(tokens)

    hooks = [
        block.register_forward_pre_hook(lambda _, args, place=place: count(place, args[0]))
        for place, block in enumerate(model.backbone.blocks)
    ]
    yield counted
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize(("network", "mode", "selector"), WAYS)
def test_batch_single_and_ragged_agree(network: str, mode: str, selector: str) -> None:
    model = selective(network)
    images = pictures(model.backbone, len(SHARES))
    alone = [
        model(images[one : one + 1], share, mode=mode, selector=selector, numbers=[one])
        for one, share in enumerate(SHARES)
    ]
    ragged = model(images, SHARES, mode=mode, selector=selector)
    assert torch.equal(ragged.kept, torch.cat([one.kept for one in alone]))
    torch.testing.assert_close(ragged.logits, torch.cat([one.logits for one in alone]), rtol=0, atol=SAME)
    assert float(ragged.logits.std(0).mean()) > 0.05, "pictures must matter for this to mean anything"
    together = model(images, SHARES[3], mode=mode, selector=selector)
    assert torch.equal(together.kept[3], alone[3].kept[0])
    torch.testing.assert_close(together.logits[3:4], alone[3].logits, rtol=0, atol=SAME)


@pytest.mark.parametrize(("network", "mode", "selector"), [way for way in WAYS if way[2] == "gates"])
def test_the_order_of_a_batch_means_nothing(network: str, mode: str, selector: str) -> None:
    model = selective(network)
    images, order = pictures(model.backbone, len(SHARES)), torch.randperm(len(SHARES)).tolist()
    before = model(images, SHARES, mode=mode, selector=selector)
    shuffled = model(images[order], [SHARES[one] for one in order], mode=mode, selector=selector, numbers=order)
    assert torch.equal(shuffled.kept, before.kept[order])
    torch.testing.assert_close(shuffled.logits, before.logits[order], rtol=0, atol=SAME)


@pytest.fixture(scope="module")
def networks() -> dict[str, SelectiveViT]:
    torch.manual_seed(7)
    return {name: selective(name) for name in BACKBONES}


@each_network
@settings(max_examples=15, deadline=None)
@given(
    thousandths=st.lists(st.integers(1, 1000), min_size=1, max_size=4),
    selector=st.sampled_from(["gates", "random"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_exact_sends_the_ceiling_of_the_share_and_up_to_never_more(
    networks: dict[str, SelectiveViT], name: str, thousandths: list[int], selector: str, seed: int
) -> None:
    model, draw = networks[name], torch.Generator().manual_seed(seed)
    patches = model.backbone.patches
    images = torch.randn(len(thousandths), *model.backbone.image_shape, generator=draw)
    alpha = [one / 1000 for one in thousandths]
    budget = torch.tensor([-(-one * patches // 1000) for one in thousandths])
    exact = model(images, alpha, mode="exact", selector=selector)
    assert torch.equal(exact.sent, budget)
    torch.testing.assert_close(exact.share, budget.double() / patches)
    assert bool((model(images, alpha, mode="up-to", selector=selector).sent <= budget).all())


@each_network
def test_up_to_sends_less_where_little_lies_above_the_threshold(name: str) -> None:
    model = selective(name)
    sent = model(pictures(model.backbone, 20), 0.5, mode="up-to").sent
    assert int(sent.min()) < math.ceil(0.5 * model.backbone.patches)
    for place in model.gate_places:
        torch.nn.init.constant_(model.gate_at(place).threshold.bias, 100.0)
    empty = model(pictures(model.backbone, 3), 0.5, mode="up-to")
    assert empty.sent.tolist() == [0, 0, 0] and bool(empty.logits.isfinite().all())


@each_network
@pytest.mark.parametrize("batch", [1, 4])
def test_later_blocks_see_fewer_tokens(name: str, batch: int) -> None:
    """Prefix, budget token and patches up to the wire; the budget token stays behind."""
    model = selective(name)
    head, patches = model.head, model.backbone.patches
    first, last = math.ceil(0.25**0.5 * patches), math.ceil(0.25 * patches)
    with tokens_counted(model) as counted:
        model(pictures(model.backbone, batch), 0.25)
    assert counted == [
        {head + patches: batch},
        {head + first: batch},
        {head + first: batch},
        {head + last: batch},
        {head - 1 + last: batch},
    ]


@each_network
def test_a_ragged_batch_costs_little_more_than_its_tokens(name: str) -> None:
    model = selective(name)
    with tokens_counted(model) as counted:
        sent = model(pictures(model.backbone, len(SHARES)), SHARES).sent
    spent = sum(length * rows for length, rows in counted[-1].items())
    needed = int(sent.sum()) + model.backbone.prefix * len(SHARES)
    assert needed <= spent <= needed / 0.75


def by_hand(model: SelectiveViT, image: torch.Tensor, share: float, mode: str) -> tuple[torch.Tensor, list[bool]]:
    """Logits and choice for one picture (1, channel, row, column): nothing is cut, dropped keys are hidden."""
    backbone, patches = model.backbone, model.backbone.patches
    embedded = backbone.embed(image)
    budget = share * model.budget.all + (1 - share) * model.budget.none
    tokens = torch.cat([embedded[0, : backbone.prefix], budget[None], embedded[0, backbone.prefix :]])
    kept = [True] * patches
    for block in range(BLOCKS):
        if block in GATES:
            gate = model.gate_at(block)
            scores = gate.scores(tokens[None, model.head :])[0].tolist()
            threshold = gate.thresholds(tokens[None, backbone.prefix])[0].item()
            passed = [1 / (1 + math.exp(-one)) - 1 / (1 + math.exp(-threshold)) for one in scores]
            if mode == "soft":
                kept = [stays and pass_ > LEAST for stays, pass_ in zip(kept, passed, strict=True)]
                weights = [pass_ if stays else 1.0 for stays, pass_ in zip(kept, passed, strict=True)]
                heavy = torch.tensor(weights, dtype=tokens.dtype).unsqueeze(-1)
                tokens = torch.cat([tokens[: model.head], tokens[model.head :] * heavy])
            else:
                count = math.ceil(share ** ((GATES.index(block) + 1) / len(GATES)) * patches - 1e-6)
                order = sorted((one for one in range(patches) if kept[one]), key=lambda one: -scores[one])
                kept = [one in order[:count] for one in range(patches)]
                if mode == "up-to":
                    kept = [stays and pass_ > 0 for stays, pass_ in zip(kept, passed, strict=True)]
        if block == SPLIT:
            tokens = torch.cat([tokens[: backbone.prefix], tokens[model.head :]])
        hidden = torch.tensor([False] * (len(tokens) - patches) + [not stays for stays in kept])
        bias = torch.zeros(len(tokens), dtype=tokens.dtype).masked_fill(hidden, -torch.inf)
        tokens = backbone.block(block, tokens[None], bias.expand(1, 1, len(tokens), -1))[0]
    return backbone.classify(tokens[None], torch.tensor([kept]))[0], kept


@each_network
@pytest.mark.parametrize("mode", MODES)
@torch.no_grad()
def test_removal_is_a_full_pass_with_dropped_keys_hidden(name: str, mode: str) -> None:
    """In float64, where 1e-10 leaves room for rounding alone."""
    model = selective(name, torch.float64)
    images = pictures(model.backbone, len(SHARES), torch.float64)
    picked = model(images, SHARES, mode=mode)
    for row, share in enumerate(SHARES):
        logits, kept = by_hand(model, images[row : row + 1], share, mode)
        assert picked.kept[row].tolist() == kept
        torch.testing.assert_close(picked.logits[row], logits, rtol=0, atol=1e-10)
    assert 0 < int(picked.sent.sum()) < images.shape[0] * model.backbone.patches


@each_network
def test_what_was_dropped_at_the_first_gate_is_only_felt_through_the_blocks_before_it(name: str) -> None:
    """Block 0 taken away, so that nothing mixes before the gate at block 1: then other pixels in dropped patches change
    nothing, if the choice stays as it was, and pixels in kept ones do."""
    model = selective(name)
    run = model.backbone.block
    model.backbone.block = lambda index, tokens, bias: tokens if index == 0 else run(index, tokens, bias)  # type: ignore[method-assign]
    images = pictures(model.backbone, 1)
    with tokens_counted(model) as counted:
        before = model(images, 0.3, selector="random")
    first = math.ceil(0.3**0.5 * model.backbone.patches)
    assert counted[1] == {model.head + first: 1}
    rows, columns = model.backbone.grid
    changed = 0
    for patch in range(rows * columns):
        other = images.clone()
        high, wide = 4 * (patch // columns), 4 * (patch % columns)
        other[:, :, high : high + 4, wide : wide + 4] += 3.0
        changed += not torch.allclose(model(other, 0.3, selector="random").logits, before.logits, rtol=0, atol=1e-6)
    assert changed == first


@each_network
@torch.no_grad()
def test_a_share_of_one_is_the_whole_network_with_a_budget_token(name: str) -> None:
    """With weights that make the budget token invisible, it is the network itself: its keys are hidden."""
    model = selective(name, torch.float64)
    images = pictures(model.backbone, 3, torch.float64)
    backbone, run = model.backbone, model.backbone.block

    def without_budget(index: int, tokens: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        assert bias is None
        hidden = torch.zeros(tokens.shape[1], dtype=tokens.dtype)
        if index < SPLIT:
            hidden[backbone.prefix] = -torch.inf
        return run(index, tokens, hidden.expand(len(tokens), 1, len(hidden), -1))

    backbone.block = without_budget  # type: ignore[method-assign]
    out = backbone.network(images)
    expected = out if isinstance(out, torch.Tensor) else out.logits
    picked = model(images, 1.0)
    assert bool(picked.kept.all())
    torch.testing.assert_close(picked.logits, expected, rtol=0, atol=1e-12)


@each_network
@pytest.mark.parametrize(
    ("selector", "dtype"),
    [
        ("random", torch.bfloat16),
        ("random", torch.float16),
        ("gates", torch.float16),
        ("cls-attention", torch.bfloat16),
    ],
)
def test_half_precision_keeps_the_same_counts(name: str, selector: str, dtype: torch.dtype) -> None:
    if name == "plain" and SELECTORS[selector].needs_attention:
        selector = "gates"
    model = selective(name)
    images = pictures(model.backbone, len(SHARES))
    single = model(images, SHARES, selector=selector)
    half = model.to(dtype)(images.to(dtype), SHARES, selector=selector)
    assert half.logits.dtype == dtype and bool(half.logits.isfinite().all())
    assert torch.equal(half.sent, single.sent)
    if selector == "random":  # the same patches, so that logits differ by rounding alone: 2 decimals of 8 bits
        assert torch.equal(half.kept, single.kept)
        torch.testing.assert_close(half.logits.float(), single.logits, rtol=0, atol=0.15)


@pytest.mark.parametrize("mode", MODES)
def test_without_a_link_nothing_is_sent_as_symbols(mode: str) -> None:
    model = selective("vit")
    assert model(pictures(model.backbone, 2), 0.5, mode=mode).symbols.tolist() == [0, 0]


def test_inference_mode_gives_the_same() -> None:
    model = selective("vit")
    images, link = pictures(model.backbone, 2), Link(find_channel("awgn"), 0.5, float("inf"))
    plain = model(images, 0.5, link=link)
    with torch.inference_mode():
        again = model(images, 0.5, link=link)
    assert torch.equal(again.logits, plain.logits) and torch.equal(again.kept, plain.kept)
