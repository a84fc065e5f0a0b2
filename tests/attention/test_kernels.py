"""Both kernels against the float64 oracle, on fresh random inputs whose axes are different primes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import attention_map

from sinkscope.attention.given import Attention
from sinkscope.attention.groups import merge_groups, query_weights
from sinkscope.attention.kernels import KERNELS, probability_chunks
from sinkscope.attention.statistics import Collect, LayerAccumulator

# Rounding of a sum of up to some hundred float32 products, and of the inputs of half precision before it: scores of
# this size carry an error of about 1e-6, probabilities inherit it.
TOLERANCE = 5e-6


def random_attention(
    batch: int, kv_heads: int, groups: int, queries: int, keys: int, dim: int, dtype: torch.dtype, kind: str
) -> tuple[Attention, torch.Tensor | None]:
    """An attention call and which key each query may see, (batch, 1, query, key), or None for all."""
    query = (2 * torch.randn(batch, kv_heads * groups, queries, dim)).to(dtype)
    key = (2 * torch.randn(batch, kv_heads, keys, dim)).to(dtype)
    value = torch.randn(batch, kv_heads, keys, dim).to(dtype)
    visible = {
        "full": None,
        "causal": torch.ones(queries, keys).tril(keys - queries).bool().expand(batch, 1, -1, -1),
        "padding": (torch.arange(keys) >= torch.arange(batch).view(-1, 1) * 3).view(batch, 1, 1, keys),
        "sliding": _sliding(queries, keys).expand(batch, 1, -1, -1),
        "random": torch.rand(batch, 1, queries, keys) < 0.3,
    }[kind]
    implicit = kind == "causal" and queries == keys
    attention = Attention(
        query=query, key=key, value=value, mask=None if implicit else visible, causal=implicit, scale=dim**-0.5
    )
    return attention, visible


def _sliding(queries: int, keys: int) -> torch.Tensor:
    distance = torch.arange(keys - queries, keys).view(-1, 1) - torch.arange(keys)
    return (distance >= 0) & (distance < 5)


def sdpa(attention: Attention) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(
        attention.query,
        attention.key,
        attention.value,
        attn_mask=attention.mask,
        is_causal=attention.causal,
        scale=attention.scale,
        enable_gqa=True,
    ).transpose(1, 2)


@pytest.mark.parametrize("kernel", ["one-pass", "two-pass"])
@pytest.mark.parametrize(
    ("dtype", "queries", "keys"),
    [(torch.float32, 151, 151), (torch.float32, 7, 151), (torch.float32, 1, 13), (torch.bfloat16, 151, 151),
     (torch.float16, 7, 151)],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["full", "causal", "padding", "sliding", "random"])
def test_statistics_and_output_match_float64(
    kernel: str, kind: str, dtype: torch.dtype, queries: int, keys: int
) -> None:
    attention, visible = random_attention(2, 3, 5, queries, keys, 11, dtype, kind)
    expected = attention_map(attention.query, attention.key, visible, attention.scale)
    labels = torch.randint(-1, 3, (2, queries))
    weights, sizes = query_weights(labels, 3)
    accumulator = LayerAccumulator(
        attention, 0, Collect(norms=True, entropy=True, map_layers=(0,), map_heads=(4, 1)), weights
    )
    output = KERNELS[kernel](attention, accumulator, lambda: sdpa(attention))
    layer = accumulator.finish()

    for row in range(2):
        for group in range(3):
            member = labels[row] == group
            mean = expected[row][:, member].mean(1) if member.any() else torch.zeros_like(expected[row, :, 0])
            torch.testing.assert_close(layer.by_group[row, :, group].double(), mean, atol=TOLERANCE, rtol=0)
    counted = labels >= 0
    whole = merge_groups(layer.by_group, sizes)
    for row in range(2):
        if counted[row].any():
            torch.testing.assert_close(
                whole[row].double(), expected[row][:, counted[row]].mean(1), atol=TOLERANCE, rtol=0
            )
    assert layer.attention is not None
    torch.testing.assert_close(layer.attention.double(), expected[:, [4, 1]], atol=TOLERANCE, rtol=0)
    assert layer.entropy is not None
    entropy = -torch.special.xlogy(expected, expected).sum(-1)
    torch.testing.assert_close(
        layer.entropy.double(), entropy.masked_fill(~counted.unsqueeze(1), torch.nan), atol=2e-4, rtol=0, equal_nan=True
    )
    assert layer.key_norm is not None
    torch.testing.assert_close(layer.key_norm.double(), attention.key.double().norm(dim=-1), atol=1e-5, rtol=1e-6)
    value = attention.value.double().repeat_interleave(5, dim=1)
    exact = torch.einsum("bhqk,bhkd->bqhd", expected, value)
    # Half precision rounds the output itself (8 or 11 bits), float32 only the sums.
    rounding = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}[dtype]
    torch.testing.assert_close(output.double(), exact, atol=rounding, rtol=rounding)


def test_two_pass_returns_sdpa_bit_for_bit() -> None:
    attention, _ = random_attention(2, 3, 5, 37, 37, 11, torch.bfloat16, "padding")
    weights, _ = query_weights(torch.zeros(2, 37, dtype=torch.long), 1)
    accumulator = LayerAccumulator(attention, 0, Collect(), weights)
    assert torch.equal(KERNELS["two-pass"](attention, accumulator, lambda: sdpa(attention)), sdpa(attention))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_pass_output_is_as_exact_as_sdpa(dtype: torch.dtype) -> None:
    attention, _ = random_attention(1, 2, 3, 211, 211, 16, dtype, "full")
    weights, _ = query_weights(torch.zeros(1, 211, dtype=torch.long), 1)
    output = KERNELS["one-pass"](attention, LayerAccumulator(attention, 0, Collect(), weights), lambda: sdpa(attention))
    probabilities = attention_map(attention.query, attention.key, None, attention.scale)
    exact = torch.einsum("bhqk,bhkd->bqhd", probabilities, attention.value.double().repeat_interleave(3, dim=1))
    ours, theirs = (output.double() - exact).abs().mean(), (sdpa(attention).double() - exact).abs().mean()
    # The mean error of the same sums in another order: within a factor of two, half precision only better.
    assert ours <= 2 * theirs


@given(
    queries=st.integers(1, 300),
    extra=st.integers(0, 40),
    kv_heads=st.integers(1, 3),
    groups=st.integers(1, 3),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=25, deadline=None)
def test_rows_are_probabilities_and_cover_every_query(
    queries: int, extra: int, kv_heads: int, groups: int, seed: int
) -> None:
    torch.manual_seed(seed)
    attention, _ = random_attention(1, kv_heads, groups, queries, queries + extra, 5, torch.float32, "full")
    covered = []
    for start, stop, probabilities in probability_chunks(attention):
        covered += list(range(start, stop))
        assert probabilities.shape == (1, kv_heads * groups, stop - start, queries + extra)
        torch.testing.assert_close(probabilities.sum(-1), torch.ones(1, kv_heads * groups, stop - start))
    assert covered == list(range(queries))


def test_memory_of_a_chunk_does_not_grow_with_the_map() -> None:
    attention, _ = random_attention(1, 2, 1, 4099, 4099, 3, torch.float32, "full")
    largest = max(probabilities.numel() for _, _, probabilities in probability_chunks(attention))
    assert largest <= 2 * 128 * 4099
