"""Patches that are taken in by those that stay: EViT's fusing, ToMe's merging, by the papers' own words."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tiny_vits import GATES, SPLIT, STOCK, pictures, selective

from sinkscope.selection import find_selector, merge_alike, merging
from sinkscope.selection.budgets import alphas, gate_counts

SHARES = [0.1, 0.35, 0.6, 0.9, 1.0]
WAYS = ["evit", "tome"]


def merged_by_hand(patches: NDArray[np.float64], count: int) -> list[tuple[set[int], NDArray[np.float64]]]:
    """Which patches each one that is left stands for, and their mean: the paper's steps, a pair at a time."""
    left = [({number}, patch) for number, patch in enumerate(patches)]
    while len(left) > count:
        ones, others = left[::2], left[1::2]
        pairs = []
        for place, (_, one) in enumerate(ones):
            cosines = [one @ other / np.linalg.norm(one) / np.linalg.norm(other) for _, other in others]
            pairs.append((max(cosines), place, int(np.argmax(cosines))))
        pairs.sort(key=lambda pair: (-pair[0], pair[1]))
        taken = pairs[: min(len(left) - count, len(others))]
        gone = {place for _, place, _ in taken}
        grown = []
        for number, (members, patch) in enumerate(others):
            new = [ones[place] for _, place, into in taken if into == number]
            every = [(members, patch), *new]
            weights = [len(some) for some, _ in every]
            mean = np.average([mean for _, mean in every], axis=0, weights=weights)
            grown.append((set.union(*(some for some, _ in every)), mean))
        kept = {id(one): one for place, one in enumerate(ones) if place not in gone}
        rows = []
        for number, before in enumerate(left):
            if number % 2:
                rows.append(grown[number // 2])
            elif id(before) in kept:
                rows.append(before)
        left = rows
    return left


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 17), st.data(), st.integers(0, 2**32 - 1))
def test_merging_is_that_of_the_paper(patches: int, data: st.DataObject, seed: int) -> None:
    count = data.draw(st.integers(1, patches))
    tokens = torch.randn(patches, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    padded = torch.cat([tokens, torch.full((2, 6), torch.nan, dtype=torch.float64)])
    there = torch.arange(patches + 2) < patches
    left, means, sizes = merge_alike(padded, torch.ones(patches + 2, dtype=torch.float64), there, count)
    expected = merged_by_hand(tokens.numpy(), count)
    assert sizes[left].tolist() == [len(members) for members, _ in expected]
    assert int(sizes[left].sum()) == patches
    np.testing.assert_allclose(means[left].numpy(), np.stack([mean for _, mean in expected]), rtol=1e-12, atol=1e-12)


def test_the_mean_of_all_patches_is_kept_by_merging_twice() -> None:
    """Weights go from gate to gate: a token that stands for three counts three times."""
    tokens = torch.randn(12, 5, dtype=torch.float64)
    ones, all_there = torch.ones(12, dtype=torch.float64), torch.ones(12, dtype=torch.bool)
    left, means, sizes = merge_alike(tokens, ones, all_there, 7)
    last, final, weights = merge_alike(means, sizes, left, 3)
    assert int(last.sum()) == 3
    mean = (final[last] * weights[last].unsqueeze(-1)).sum(0) / weights[last].sum()
    torch.testing.assert_close(mean, tokens.mean(0), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", STOCK)
def test_as_many_tokens_are_sent_alone_and_in_a_batch(name: str, way: str) -> None:
    model = selective(name)
    images = pictures(model.backbone, len(SHARES))
    together = model(images, SHARES, selector=way)
    wanted = gate_counts(alphas(SHARES, len(SHARES)), len(GATES), model.backbone.patches)[-1]
    assert together.sent.tolist() == wanted.tolist()
    for row, share in enumerate(SHARES):
        alone = model(images[row : row + 1], share, selector=way)
        assert torch.equal(alone.kept[0], together.kept[row])
        torch.testing.assert_close(alone.logits[0], together.logits[row], rtol=1e-4, atol=1e-4)  # single precision


def test_each_picture_is_merged_once_a_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    model, counts = selective("vit"), []

    def counted(patches: torch.Tensor, sizes: torch.Tensor, there: torch.Tensor, count: int) -> merging.Rows:
        counts.append(count)
        return merge_alike(patches, sizes, there, count)

    monkeypatch.setattr(merging, "merge_alike", counted)
    model(pictures(model.backbone, 3), 0.5, selector="tome")
    assert len(counts) == 3 * len(GATES)
    assert not merging._AT_GATES, "nothing is held when the pass is over"


@pytest.mark.parametrize("way", WAYS)
def test_everything_sent_is_the_whole(way: str) -> None:
    model = selective("vit")
    images = pictures(model.backbone, 2)
    torch.testing.assert_close(model(images, 1.0, selector=way).logits, model(images, 1.0).logits, rtol=1e-6, atol=1e-6)


def test_what_evit_drops_is_fused_by_the_class_tokens_attention() -> None:
    from test_selectors import at_gate

    from sinkscope.selection.selectors import BlockAttention

    attention = torch.tensor([[0.05, 0.3, 0.1, 0.2, 0.15, 0.9]])
    seen = BlockAttention(received=attention, by_class=attention, key_norm=attention)
    at = at_gate(6, [0])
    tokens, there = torch.randn(1, 6, 4), torch.tensor([[True] * 5 + [False]])
    at = type(at)(**{**vars(at), "attention": seen, "patches": tokens, "there": there})
    keep = torch.tensor([[False, True, False, True, False, False]])  # the last one, padding, is not there
    merged = find_selector("evit").merged(at, keep)
    assert merged is not None
    assert torch.equal(merged.patches[0, 1], tokens[0, 1])
    fused = sum(float(attention[0, one]) * tokens[0, one] for one in (0, 2, 3, 4))
    torch.testing.assert_close(merged.patches[0, 3], torch.as_tensor(fused), rtol=1e-5, atol=1e-6)


def test_queries_see_a_merged_token_as_often_as_it_stands_for_patches() -> None:
    """A patch that stands there twice, merged, is as if it stood there twice."""
    model = selective("vit")
    block = model.backbone
    tokens = torch.randn(1, 6, block.width)
    twice = torch.cat([tokens, tokens[:, 5:]], dim=1)
    from sinkscope.selection.removal import Group

    sizes = torch.tensor([[1.0, 1.0, 1.0, 2.0]])
    group = Group(
        rows=torch.arange(1), tokens=tokens, head=2, positions=torch.arange(4).expand(1, -1),
        there=torch.ones(1, 4, dtype=torch.bool), sizes=sizes,
    )  # fmt: skip
    merged = block.block(SPLIT - 1, tokens, group.bias())
    torch.testing.assert_close(merged, block.block(SPLIT - 1, twice, None)[:, :6], rtol=1e-4, atol=1e-5)
