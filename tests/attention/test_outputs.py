"""Where heads' outputs come from: against the whole maps in float64, and by the measures' own laws."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from oracle import attention_map

from sinkscope.attention import Collect, kernels, watch
from sinkscope.attention.cutting import cutting
from sinkscope.attention.evicting import KeyIndex
from sinkscope.attention.given import Attention
from sinkscope.attention.groups import query_weights
from sinkscope.attention.outputs import HeadOutputs, head_outputs
from sinkscope.attention.statistics import LayerAccumulator
from sinkscope.errors import UserError
from sinkscope.families import Model

BATCH, HEADS, KV_HEADS, TOKENS, DIM = 2, 6, 3, 29, 7
CLOSE = {"rtol": 2e-5, "atol": 2e-6}  # float32 sums over 29 keys; means of shares
PADDING = 5


def made(kind: str, dtype: torch.dtype = torch.float32) -> tuple[Attention, torch.Tensor, torch.Tensor]:
    """Random grouped attention with a sink, what each query may see (batch, 1, query, key), and which queries count."""
    query = torch.randn(BATCH, HEADS, TOKENS, DIM, dtype=dtype)
    key, value = (torch.randn(BATCH, KV_HEADS, TOKENS, DIM, dtype=dtype) for _ in range(2))
    key[:, :, PADDING + 1] = 3 * query[:, :: HEADS // KV_HEADS].mean(2)
    value[:, 1, PADDING + 1] /= 50
    visible = torch.ones(BATCH, 1, TOKENS, TOKENS, dtype=torch.bool)
    counted = torch.ones(BATCH, TOKENS, dtype=torch.bool)
    if kind != "bidirectional":
        visible = visible.tril()
    if "padded" in kind:
        counted[1, :PADDING] = False
        visible = visible & counted[:, None, None, :] & counted[:, None, :, None]
    mask: torch.Tensor | None = visible if "padded" in kind else None
    if kind == "added padded":
        mask = torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)
    attention = Attention(query=query, key=key, value=value, mask=mask, causal=kind == "causal", scale=0.9, index=None)
    return attention, visible, counted


def measured(attention: Attention, visible: torch.Tensor, counted: torch.Tensor) -> HeadOutputs:
    received = maps_of(attention, visible).masked_fill(~counted[:, None, :, None], 0).sum(2)
    return head_outputs(attention, counted, (received / counted.sum(-1)[:, None, None]).to(attention.value.dtype))


def maps_of(attention: Attention, visible: torch.Tensor) -> torch.Tensor:
    return attention_map(attention.query, attention.key, visible, attention.scale)


def stable_rank(output: np.ndarray) -> float:
    sizes = np.linalg.svd(output, compute_uv=False)
    return float((sizes**2).sum() / sizes[0] ** 2)


@pytest.mark.parametrize("chunk", [16, 128])
@pytest.mark.parametrize("kind", ["bidirectional", "causal", "padded", "added padded"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_everything_equals_the_whole_maps_in_float64(
    monkeypatch: pytest.MonkeyPatch, kind: str, dtype: torch.dtype, chunk: int
) -> None:
    monkeypatch.setitem(kernels.MOST_ROWS, "cpu", chunk)
    attention, visible, counted = made(kind, dtype)
    found = measured(attention, visible, counted)
    maps = maps_of(attention, visible).numpy()
    for row in range(BATCH):
        for head in range(HEADS):
            queries = counted[row].numpy()
            paid = maps[row, head][queries]
            value = attention.value[row, head // (HEADS // KV_HEADS)].double().numpy()
            output = paid @ value
            through = paid[:, :, None] * value  # (query, key, dim)
            size = np.linalg.norm(output, axis=-1, keepdims=True)
            expected = {
                "value_norm": np.linalg.norm(value, axis=-1),
                "norm_share": (np.linalg.norm(through, axis=-1) / size).mean(0),
                "output_share": (np.einsum("qkd,qd->qk", through, output) / size**2).mean(0),
            }
            for name, wanted in expected.items():
                np.testing.assert_allclose(
                    getattr(found, name)[row, head], wanted, rtol=CLOSE["rtol"], atol=CLOSE["atol"], err_msg=name
                )
            assert float(found.output_norm[row, head]) == pytest.approx(size.mean(), rel=1e-5)
            received = paid.mean(0)
            top = int(received.argmax())
            assert int(found.top[row, head]) == top
            others = [key for key in np.argsort(-received, kind="stable") if key != top and received[key] > 0]
            middle = others[(len(others) - 1) // 2]
            ranks = {
                "rank": stable_rank(output),
                "rank_without_top": stable_rank(output - through[:, top]),
                "rank_without_other": stable_rank(output - through[:, middle]),
            }
            for name, rank in ranks.items():
                assert float(getattr(found, name)[row, head]) == pytest.approx(rank, rel=2e-5), name


@pytest.mark.parametrize("kind", ["bidirectional", "causal", "padded"])
def test_shares_of_the_output_make_one(kind: str) -> None:
    found = measured(*made(kind))
    torch.testing.assert_close(found.output_share.sum(-1), torch.ones(BATCH, HEADS), rtol=0, atol=1e-5)
    assert bool((found.norm_share >= found.output_share.abs() - 1e-6).all())


def test_a_key_without_value_gives_nothing_and_its_loss_changes_nothing() -> None:
    attention, visible, counted = made("causal")
    attention.value[:, :, 0] = 0
    attention.key[:, :, 0] = 8 * attention.query[:, :: HEADS // KV_HEADS].mean(2)
    attention.query[:] += 2 * attention.query.mean(2, keepdim=True)
    found = measured(attention, visible, counted)
    strongest = found.top == 0
    assert bool(strongest.any())
    for values in (found.value_norm, found.norm_share, found.output_share):
        assert float(values[..., 0].abs().max()) == 0
    torch.testing.assert_close(found.rank[strongest], found.rank_without_top[strongest], rtol=0, atol=0)
    # The first query sees that key alone, so it has no output, and no share.
    torch.testing.assert_close(found.output_share.sum(-1), torch.ones(BATCH, HEADS), rtol=0, atol=1e-5)


def test_a_sink_with_all_the_attention_is_the_output_and_leaves_digits_of_the_rest() -> None:
    attention, visible, counted = made("bidirectional", torch.float64)
    attention.key[:, :, 3] = attention.query[:, ::2].mean(2)
    attention.query[:] = attention.query.mean(2, keepdim=True) + 0.05 * attention.query
    attention.key[:, :, 3] *= 20 / (attention.query[:, ::2].mean(2) * attention.key[:, :, 3]).sum(-1, keepdim=True)
    exact = measured(attention, visible, counted)
    coarse = measured(
        Attention(
            query=attention.query.float(), key=attention.key.float(), value=attention.value.float(), mask=None,
            causal=False, scale=0.9,
        ),
        visible,
        counted,
    )  # fmt: skip
    heads = exact.output_share[..., 3] > 0.999
    assert bool(heads.any())
    assert float((exact.rank[heads] - 1).abs().max()) < 0.01
    # single precision: what is left is a thousandth of the whole, and no difference of large numbers
    torch.testing.assert_close(
        coarse.rank_without_top[heads].double(), exact.rank_without_top[heads], rtol=1e-4, atol=0
    )


def test_nothing_is_made_up_where_there_is_nothing() -> None:
    attention, visible, counted = made("bidirectional")
    attention.value[:] = 0
    found = measured(attention, visible, counted)
    for values in (found.norm_share, found.output_share, found.rank, found.rank_without_top, found.rank_without_other):
        assert bool(values.isnan().all())
    single = Attention(
        query=torch.randn(1, 2, 1, DIM), key=torch.randn(1, 1, 1, DIM), value=torch.randn(1, 1, 1, DIM), mask=None,
        causal=False, scale=1.0,
    )  # fmt: skip
    found = head_outputs(single, torch.ones(1, 1, dtype=torch.bool), torch.ones(1, 2, 1))
    torch.testing.assert_close(found.output_share, torch.ones(1, 2, 1))
    torch.testing.assert_close(found.rank, torch.ones(1, 2))
    assert bool(found.rank_without_top.isnan().all()) and bool(found.rank_without_other.isnan().all())


def test_a_watched_pass_has_them_for_every_layer(tiny: Callable[[str], Model]) -> None:
    model = tiny("llada-tiny")
    tokens = torch.tensor([[5, 9, 2, 8, 1, 4], [0, 0, 7, 3, 11, 6]])
    mask = torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1]])
    with watch(model, Collect(outputs=True, norms=True)) as watched:
        model.network(tokens, attention_mask=mask)
    outputs, norms = watched.last.outputs, watched.last.value_norm
    assert outputs is not None and norms is not None
    assert outputs.norm_share.shape == watched.received.shape
    assert outputs.rank.shape == outputs.top.shape == watched.received.shape[:3]
    assert bool((outputs.top == watched.received.argmax(-1)).all())
    shared = outputs.value_norm.shape[2] // norms.shape[2]
    torch.testing.assert_close(outputs.value_norm, norms.repeat_interleave(shared, dim=2))
    assert float(outputs.output_share[:, 1, :, :2].abs().max()) == 0
    with watch(model) as plain:
        model.network(tokens, attention_mask=mask)
    assert plain.last.outputs is None


def test_a_pass_that_masks_keys_is_refused(tiny: Callable[[str], Model]) -> None:
    model = tiny("llada-tiny")

    class Nobody:
        needs_received = False

        def weights(self, _: Attention) -> torch.Tensor:
            raise AssertionError

        def cut(self, *_: object) -> None:
            return None

        def on_layer_end(self, *_: object) -> None:
            return None

    with (
        watch(model, Collect(outputs=True)),
        cutting(Nobody()),
        pytest.raises(UserError, match="watch one without masking"),
    ):
        model.network(torch.tensor([[5, 9, 2]]))


def test_keys_that_a_cache_dropped_are_not_there() -> None:
    attention, _, counted = made("bidirectional")
    columns = torch.sort(torch.rand(BATCH, KV_HEADS, TOKENS + 4).argsort(-1)[..., :TOKENS]).values
    index = KeyIndex(columns, TOKENS + 4)
    weights, _ = query_weights(torch.where(counted, 0, -1), 1)
    plain, dropped = (
        LayerAccumulator(replace(attention, index=one), 0, Collect(outputs=True), weights) for one in (None, index)
    )
    for start, stop, probabilities in kernels.probability_chunks(attention):
        plain.add(start, stop, probabilities)
        dropped.add(start, stop, probabilities)
    keys, by_column = plain.finish().outputs, dropped.finish().outputs
    assert keys is not None and by_column is not None
    there = index.of_heads(HEADS)
    for name in ("value_norm", "norm_share", "output_share"):
        values = getattr(by_column, name)
        torch.testing.assert_close(values.gather(-1, there), getattr(keys, name), rtol=0, atol=0)
        assert int(values.isnan().sum()) == BATCH * HEADS * 4
    assert bool((by_column.top == there.gather(-1, keys.top.unsqueeze(-1)).squeeze(-1)).all())
    torch.testing.assert_close(by_column.rank_without_top, keys.rank_without_top, rtol=0, atol=0)
