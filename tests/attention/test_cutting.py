"""One layer under a cut, against plain softmax in float64 with an additive mask of -inf: fresh random inputs, axes of
different primes."""

from dataclasses import replace
from typing import Any, Self

import pytest
import torch
from cuts import (
    BATCH,
    DIM,
    KINDS,
    OUTPUTS,
    PROBABILITIES,
    Expected,
    Fixed,
    never,
    oracle,
    random_attention,
    random_cut,
    stand_ins,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from sinkscope.attention import kernels
from sinkscope.attention.cutting import attend, current_cutter, cutting
from sinkscope.attention.evicting import KeyIndex
from sinkscope.attention.function import attention_forward
from sinkscope.attention.given import Accumulator, Attention, Cut
from sinkscope.attention.kernels import KERNELS
from sinkscope.errors import UserError


def check(attention: Attention, visible: torch.Tensor, cut: Cut) -> Expected:
    """Compare output, removed attention and both received attentions with the oracle."""
    dtype = attention.value.dtype
    weights = torch.rand(BATCH, attention.query.shape[2])
    cutter = Fixed(cut, weights)
    output = attend(attention, cutter, never, None)
    expected = oracle(attention, visible, cut)
    assert output.dtype == dtype
    torch.testing.assert_close(output.double(), expected.output, atol=OUTPUTS[dtype], rtol=OUTPUTS[dtype])
    close = PROBABILITIES[dtype]
    assert cutter.before is not None and cutter.received is not None and cutter.removed is not None
    torch.testing.assert_close(cutter.removed.double(), expected.removed, atol=close, rtol=0)
    for found, maps in ((cutter.before, expected.plain), (cutter.received, expected.under)):
        wanted = torch.einsum("bq,bhqk->bhk", weights.double(), maps)
        # Sums over some dozen rows, each with the error of a probability.
        torch.testing.assert_close(found.double(), wanted, atol=10 * close, rtol=0)
    return expected


@pytest.mark.parametrize("values", [False, True], ids=["scores", "values"])
@pytest.mark.parametrize("groups", [1, 5], ids=["every head its key", "grouped"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_equals_the_additive_mask(kind: str, groups: int, values: bool) -> None:
    for some_queries in (False, True):
        attention, visible = random_attention(kind, groups=groups, dtype=torch.float32)
        check(attention, visible, random_cut(attention, some_queries=some_queries, values=values))


@pytest.mark.parametrize("values", [False, True], ids=["scores", "values"])
@pytest.mark.parametrize("kind", KINDS)
def test_in_blocks_of_rows_as_in_one(kind: str, values: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "MOST_ROWS", {"cpu": 16})
    attention, visible = random_attention(kind, dtype=torch.float64)
    assert [start for start, _, _ in kernels.probability_chunks(attention)] == [0, 16, 32]
    check(attention, visible, random_cut(attention, values=values))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_other_precisions(kind: str, dtype: torch.dtype) -> None:
    attention, visible = random_attention(kind, dtype=dtype)
    for values in (False, True):
        check(attention, visible, random_cut(attention, values=values))


@pytest.mark.parametrize("dtype", OUTPUTS)
@pytest.mark.parametrize("kind", KINDS)
def test_other_values_stand_in_for_those_of_cut_keys(
    kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "MOST_ROWS", {"cpu": 16})
    attention, visible = random_attention(kind, dtype=dtype)
    for rows, keys in ((BATCH, attention.key.shape[2]), (1, 1), (BATCH, 1)):
        cut = random_cut(attention, values=True)
        expected = check(attention, visible, replace(cut, instead=stand_ins(attention, rows=rows, keys=keys)))
        assert not torch.allclose(expected.output, oracle(attention, visible, cut).output, atol=0.1)


def test_values_stand_in_at_the_keys_that_a_cache_has_kept() -> None:
    attention, _ = random_attention("none", dtype=torch.float32)
    columns = torch.rand(BATCH, 3, 53).argsort(-1)[..., :17].sort(-1).values
    columns[1, 2, :2] = -1  # slots without a key
    cut = replace(random_cut(attention, values=True), instead=stand_ins(attention, rows=BATCH, keys=53))
    found = cut.at_keys(KeyIndex(columns=columns, width=53))
    assert cut.instead is not None and found.instead is not None and found.instead.shape == (BATCH, 3, 17, DIM)
    for batch in range(BATCH):
        for head in range(6):
            for slot, column in enumerate(columns[batch, head // 2].tolist()):
                assert bool(found.keys[batch, head, slot]) == (column >= 0 and bool(cut.keys[batch, head, column]))
                if column >= 0:
                    assert torch.equal(found.instead[batch, head // 2, slot], cut.instead[batch, head // 2, column])
    for_all = replace(cut, instead=stand_ins(attention, rows=1, keys=1))
    assert for_all.at_keys(KeyIndex(columns=columns, width=53)).instead is for_all.instead


@given(
    queries=st.integers(1, 29), keys=st.integers(1, 31), left=st.integers(0, 2), kind=st.sampled_from(KINDS),
    seed=st.integers(0, 9999),
)  # fmt: skip
@settings(deadline=None, max_examples=60)
def test_with_all_keys_but_a_few_cut(queries: int, keys: int, left: int, kind: str, seed: int) -> None:
    """A query that would lose all that it sees keeps all, and nothing is removed from it."""
    torch.manual_seed(seed)
    attention, visible = random_attention(kind, kv_heads=2, queries=queries, keys=keys, dtype=torch.float64)
    keys = attention.key.shape[2]
    lost = torch.rand(BATCH, 4, keys).argsort(-1) >= left
    expected = check(attention, visible, Cut(keys=lost))
    if left == 0:
        assert torch.equal(expected.under, expected.plain)
        assert expected.removed.abs().max() == 0


@pytest.mark.parametrize("kind", ["causal", "boolean", "float", "float padding"])
def test_a_query_never_loses_all_its_keys(kind: str) -> None:
    attention, visible = random_attention(kind, dtype=torch.float32)
    for row in range(0, 37, 3):  # these see the first key and no other; added masks hide the rest by a lowest number
        visible = visible.clone()
        visible[:, :, row] = False
        visible[:, :, row, 0] = True
    if kind == "causal":
        attention = replace(attention, mask=visible[:, :1].clone(), causal=False)
    elif kind == "boolean":
        attention = replace(attention, mask=visible[:, :1].clone())
    else:
        hidden = torch.finfo(torch.float32).min
        attention = replace(
            attention, mask=torch.zeros(BATCH, 1, *visible.shape[2:]).masked_fill(~visible[:, :1], hidden)
        )
    lost = torch.zeros(BATCH, 6, visible.shape[-1], dtype=torch.bool)
    lost[:, ::2, 0] = True
    expected = check(attention, visible, Cut(keys=lost))
    assert (expected.under[:, :, ::3, 0] == 1).all()
    assert (expected.removed[:, 1::2] == 0).all() and (expected.removed[:, ::2] > 0).any()


def strong(gap: float) -> tuple[Attention, torch.Tensor]:
    """Every second query scores key 4 by `gap` above all others, whose scores differ by about 1."""
    attention, visible = random_attention("none", dtype=torch.float32)
    query, key = attention.query / 4, attention.key / 4
    query[..., 0], key[..., 0] = 0, 0
    query[:, :, ::2, 0] = 10
    key[:, :, 4, 0] = gap / (10 * attention.scale)
    return replace(attention, query=query, key=key), visible


@pytest.mark.parametrize("gap", [20, 43, 60, 95, 110, 200])
def test_beside_a_strong_sink_no_digits_are_lost(gap: float) -> None:
    """What is left of a row is 1e-9, 1e-19, 1e-26, a denormal number or less than float32 can hold, and is spread as it
    should be.
    """
    attention, visible = strong(gap)
    lost = torch.zeros(BATCH, 6, 53, dtype=torch.bool)
    lost[:, :, 4] = True
    expected = check(attention, visible, Cut(keys=lost))
    assert expected.plain[..., 4].amax() > 1 - 1e-6
    for query in (0, 2, 35):
        one = torch.zeros(BATCH, 37)
        one[:, query] = 1
        cutter = Fixed(Cut(keys=lost), one)
        attend(attention, cutter, never, None)
        assert cutter.received is not None and cutter.removed is not None
        torch.testing.assert_close(cutter.removed.double(), expected.removed, rtol=1e-5, atol=0)
        # Beside a gap of 200, scores of float32 are off by about 2e-5, and so are probabilities, relatively.
        torch.testing.assert_close(cutter.received.double(), expected.under[:, :, query], rtol=1e-4, atol=0)


def test_rows_that_lose_nothing_stay_bit_for_bit() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        attention, _ = random_attention("boolean", queries=211, dtype=dtype)
        cut = random_cut(attention)
        assert cut.queries is not None
        plain = KERNELS["one-pass"](attention, Nobody(), never)
        output = attend(attention, Fixed(cut, torch.ones(BATCH, 211)), never, None)
        assert torch.equal(output[~cut.queries], plain[~cut.queries])
        assert torch.equal(output[:, :, 1], plain[:, :, 1])
        assert not torch.equal(output[cut.queries], plain[cut.queries])
        nothing = Cut(keys=torch.zeros_like(cut.keys), values_only=dtype == torch.float32)
        assert torch.equal(attend(attention, Fixed(nothing, torch.ones(BATCH, 211)), never, None), plain)


class Nobody:
    """An accumulator that looks away."""

    def add(self, start: int, stop: int, probabilities: torch.Tensor, no_key: torch.Tensor | None = None) -> None: ...

    def part(self, batch: slice, heads: slice) -> Self:
        del batch, heads
        return self

    def wanted(self) -> None: ...


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the number of elements of the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.elements = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for made in result if isinstance(result, tuple | list) else [result]:
            if isinstance(made, torch.Tensor):
                self.elements = max(self.elements, made.numel())
        return result


@pytest.mark.parametrize("gap", [0, 60], ids=["divided", "from scores"])
def test_no_map_of_all_queries_and_keys_is_made(gap: float) -> None:
    length, heads = 4096, 2
    query, key, value = (torch.randn(1, heads, length, 3) for _ in range(3))
    query[..., 0], key[:, :, 0, 0] = 10, gap
    attention = Attention(query=query, key=key, value=value, mask=None, causal=False, scale=0.1)
    lost = torch.zeros(1, heads, length, dtype=torch.bool)
    lost[:, :, 0] = True
    with Largest() as largest:
        attend(attention, Fixed(Cut(keys=lost), torch.full((1, length), 1 / length)), never, None)
    assert largest.elements <= heads * kernels.MOST_ROWS["cpu"] * length
    assert largest.elements < length * length / 8


@pytest.mark.parametrize("looks", [False, True])
def test_a_layer_without_a_cut_is_left_to_sdpa(looks: bool) -> None:
    attention, _ = random_attention("boolean", dtype=torch.float32)
    output = torch.randn(3)
    told: list[Accumulator | None] = []

    def plain(accumulator: Accumulator | None) -> torch.Tensor:
        told.append(accumulator)
        return output

    cutter = Fixed(None, torch.rand(BATCH, 37), needs_received=looks)
    assert attend(attention, cutter, plain, None) is output
    assert [accumulator is not None for accumulator in told] == [looks]
    assert (cutter.received is not None) == looks
    assert cutter.removed is None


def forward(attention: Attention, **more: Any) -> torch.Tensor:
    """The attention function as transformers calls it."""
    module = torch.nn.Module()
    module.is_causal = attention.causal  # type: ignore[assignment]
    module.num_key_value_groups = attention.query.shape[1] // attention.key.shape[1]  # type: ignore[assignment]
    call = (module, attention.query, attention.key, attention.value, attention.mask)
    return attention_forward(*call, scaling=attention.scale, **more)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_as_transformers_calls_it(kind: str) -> None:
    attention, visible = random_attention(kind, dtype=torch.float32)
    cut = random_cut(attention)
    plain = forward(attention)
    with cutting(Fixed(cut, torch.ones(BATCH, 37))):
        output = forward(attention)
    torch.testing.assert_close(output.double(), oracle(attention, visible, cut).output, atol=1e-5, rtol=1e-5)
    with cutting(Fixed(None, torch.ones(BATCH, 37))):
        assert torch.equal(forward(attention), plain)
    assert not torch.equal(plain, output)


def fail_under(cutter: Fixed) -> None:
    assert current_cutter() is cutter
    raise RuntimeError("in the middle")


def test_the_cutter_is_in_force_inside_the_block_only() -> None:
    attention, _ = random_attention("none", dtype=torch.float32)
    plain = forward(attention)
    outer, inner = (Fixed(random_cut(attention), torch.ones(BATCH, 37)) for _ in range(2))
    assert current_cutter() is None
    with cutting(outer):
        with pytest.raises(RuntimeError, match="in the middle"), cutting(inner):
            fail_under(inner)
        assert current_cutter() is outer
        with cutting(None):
            assert torch.equal(forward(attention), plain)
        assert not torch.equal(forward(attention), plain)
    assert current_cutter() is None
    assert torch.equal(forward(attention), plain)


@pytest.mark.parametrize("name", ["indices", "block_indices"])
def test_keys_that_are_picked_beside_the_mask_are_refused(name: str) -> None:
    attention, _ = random_attention("none", dtype=torch.float32)
    with pytest.raises(UserError, match=r"picks keys beside its mask, which .* attention='eager'"):
        forward(attention, **{name: torch.zeros(BATCH, 37, 3, dtype=torch.long)})


def test_keys_that_stand_for_several_tokens_are_refused() -> None:
    attention, _ = random_attention("none", dtype=torch.float32)
    module = torch.nn.Module()
    module.compressor = torch.nn.Identity()
    with pytest.raises(UserError, match=r"keys that stand for several tokens each, which .* attention='eager'"):
        attention_forward(module, attention.query, attention.key, attention.value, None)


@pytest.mark.parametrize("values", [False, True], ids=["scores", "values"])
def test_gradients_pass_through_a_cut(values: bool) -> None:
    attention, visible = random_attention("boolean", dtype=torch.float64)
    leaves = (attention.query, attention.key, attention.value)
    for leaf in leaves:
        leaf.requires_grad_(True)
    cut = random_cut(attention, values=values)
    pull = torch.randn(BATCH, 37, 6, DIM, dtype=torch.float64)
    cutter = Fixed(cut, torch.rand(BATCH, 37))
    found = torch.autograd.grad((attend(attention, cutter, never, None) * pull).sum(), leaves)
    wanted = torch.autograd.grad((oracle(attention, visible, cut).output * pull).sum(), leaves)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-11, rtol=1e-11)
    assert cutter.received is not None and not cutter.received.requires_grad


@pytest.mark.parametrize("which", ["query", "key", "value"])
@pytest.mark.parametrize("how", ["watched", "cut", "values"])
def test_gradients_of_one_leaf_alone(how: str, which: str) -> None:
    """Blocks must not share memory that a gradient needs; the first query loses its only key and so keeps it."""
    attention, visible = random_attention("causal", groups=1, dtype=torch.float32)
    leaf = getattr(attention, which).requires_grad_(True)
    keys = torch.zeros(*attention.query.shape[:2], attention.key.shape[2], dtype=torch.bool)
    keys[..., 0] = how != "watched"
    cut, weights = Cut(keys=keys, values_only=how == "values"), torch.rand(BATCH, attention.query.shape[2])

    def plain(accumulator: Accumulator | None) -> torch.Tensor:
        assert accumulator is not None
        return KERNELS["one-pass"](attention, accumulator, lambda: never(None))

    cutter = Fixed(None if how == "watched" else cut, weights)
    output, _ = (attend(attention, cutter, plain, None) for _ in range(2))  # the second in memory of its own
    pull = torch.randn(output.shape)
    found = torch.autograd.grad((output * pull).sum(), leaf)[0]
    wanted = torch.autograd.grad((oracle(attention, visible, cut).output * pull).sum(), leaf)[0]
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=1e-4)  # sums over some dozen rows in float32
