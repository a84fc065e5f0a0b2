"""Compressed caches in transformers' own loop and in sinkscope's, in batches, once and again and again."""

import gc
import weakref
from pathlib import Path

import pytest
import torch
from cached_layers import ANYWHERE
from compression_models import LAYERS, WINDOW, dropped_from, feed, left_padded, load_kind, some_tokens
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

import sinkscope as ss
from sinkscope.compression import Compress, PerLayerBudget, Protect, Random, SkipLayers, make_scorer
from sinkscope.errors import UserError
from sinkscope.families import Model

STEPS = 9


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_kind("llama", tmp_path_factory.mktemp("kinds"))


@pytest.fixture(scope="module")
def qwen2(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_kind("qwen2", tmp_path_factory.mktemp("kinds"))


def stock(model: Model, compress: Compress, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """What transformers' own greedy loop writes."""
    cache = compress.cache(model, seeds=[3] * len(tokens))
    written = model.network.generate(  # type: ignore[operator]
        input_ids=tokens, attention_mask=mask, max_new_tokens=STEPS, do_sample=False, cache=cache
    )
    assert isinstance(written, torch.Tensor)
    return written[:, tokens.shape[1] :]


def ours(model: Model, compress: Compress | None, prompts: list[list[int]]) -> torch.Tensor:
    """What `decode` writes, with the same seeds."""
    steps = list(
        ss.decode(model, prompts, ss.Decoding(max_new_tokens=STEPS), seeds=[3] * len(prompts), compression=compress)
    )
    return steps[-1].canvas[:, max(map(len, prompts)) :]


PLANS = (
    Compress("key-norm", 0.4),
    Compress("random", 6),
    Compress(Protect(make_scorer("snapkv", window=3), first=2), SkipLayers(0.5, (1,))),
    Compress("streaming", 0.5, when="decode", prune_after=8),
    Compress("expected-attention", PerLayerBudget((0.5, 0.25, 9)), when="both", prune_after=12),
)


@pytest.mark.parametrize("compress", PLANS, ids=lambda plan: f"{plan.how.settings()['scorer']}-{plan.when}")
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_transformers_own_loop_writes_the_same_as_decode(
    kind: str, compress: Compress, request: pytest.FixtureRequest
) -> None:
    model: Model = request.getfixturevalue(kind)
    tokens, mask = left_padded((23, 17, 21))
    prompts = [row[keep.bool()].tolist() for row, keep in zip(tokens, mask, strict=True)]
    found, expected = stock(model, compress, tokens, mask), ours(model, compress, prompts)
    assert torch.equal(found[:, : expected.shape[1]], expected)


@pytest.mark.parametrize("compress", PLANS, ids=lambda plan: f"{plan.how.settings()['scorer']}-{plan.when}")
def test_a_prompt_is_answered_alike_alone_and_in_a_batch(llama: Model, compress: Compress) -> None:
    prompts = [some_tokens(length).tolist() for length in (19, 11, 26)]
    together = list(ss.decode(llama, prompts, ss.Decoding(max_new_tokens=STEPS), compression=compress))
    for row, prompt in enumerate(prompts):
        alone = list(ss.decode(llama, [prompt], ss.Decoding(max_new_tokens=STEPS), compression=compress))
        width = together[0].seen.shape[1]
        for batched, single in zip(together, alone, strict=False):
            padding = width - len(prompt)
            assert torch.equal(batched.canvas[row, padding:], single.canvas[0])
            confidence = batched.confidence[row, padding:].nan_to_num(-1)
            torch.testing.assert_close(confidence, single.confidence[0].nan_to_num(-1), rtol=1e-6, atol=1e-7)


def test_dropping_changes_what_is_written_and_keeping_all_does_not(llama: Model) -> None:
    prompts = [some_tokens(23).tolist() for _ in range(4)]
    plain = ours(llama, None, prompts)
    assert torch.equal(ours(llama, Compress("key-norm", 1.0), prompts), plain)
    assert torch.equal(ours(llama, Compress("key-norm", 500), prompts), plain)
    assert not torch.equal(ours(llama, Compress("key-norm", 3), prompts), plain)


@pytest.mark.parametrize("lengths", [(19,), (19, 12)])
def test_key_norm_keeps_the_lowest_norms_of_the_full_cache(llama: Model, lengths: tuple[int, ...]) -> None:
    """Chosen by hand from transformers' own cache, row by row and head by head."""
    tokens, mask = left_padded(lengths)
    full, cache = DynamicCache(config=llama.network.config), Compress("key-norm", 0.3).cache(llama)
    feed(llama.network, full, tokens, mask, 0, 19)
    feed(llama.network, cache, tokens, mask, 0, 19)
    gone = dropped_from(cache, 19)
    # Below the first layer keys are those of the full cache only until the first pass is over, as here.
    for layer in range(LAYERS):
        plain = full.layers[layer]
        assert isinstance(plain, DynamicLayer)
        keys = plain.keys
        assert keys is not None
        for row, length in enumerate(lengths):
            for head in range(keys.shape[1]):
                norms = keys[row, head, 19 - length :].norm(dim=-1).tolist()
                equal = [float(f"{norm:.4e}") for norm in norms]  # those of equal tokens, but for rounding
                best = sorted(range(length), key=equal.__getitem__)[: -(-length * 3 // 10)]
                kept = (~gone[layer][row, head, 19 - length :]).nonzero().flatten().tolist()
                assert kept == sorted(best)


def test_memory_is_freed(llama: Model) -> None:
    tokens, mask = left_padded((96,))
    whole, half = Compress("key-norm", 1.0).cache(llama), Compress("key-norm", 0.25).cache(llama)
    for cache in (whole, half):
        feed(llama.network, cache, tokens, mask, 0, 96)
    keys_and_values = 2 * LAYERS * 2 * 96 * 8 * 8  # layers, heads, tokens, dimensions, bytes of a float64
    assert whole.nbytes >= keys_and_values
    assert half.nbytes < 0.25 * keys_and_values + 0.05 * keys_and_values
    for layer in half.dropping:
        for tensor in (layer.keys, layer.values):
            assert tensor is not None
            assert tensor.shape[2] == 24
            assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size(), "a view of more"


def test_what_has_left_a_window_is_freed(tmp_path: Path) -> None:
    model = load_kind("mistral", tmp_path)
    cache = Compress("key-norm", 1.0).cache(model)
    tokens, mask = left_padded((40,))
    for start, stop in ((0, 30), (30, 40)):
        feed(model.network, cache, tokens, mask, start, stop)
        for layer in cache.dropping:
            assert layer.keys is not None
            assert layer.keys.shape[2] == WINDOW - 1
            assert layer.keys.untyped_storage().nbytes() == layer.keys.numel() * layer.keys.element_size()


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_nothing_keeps_the_dropped_keys_alive(kind: str, request: pytest.FixtureRequest) -> None:
    """Every tensor that a pass handed to attention is gone when the pass is over, in sliding layers too."""
    model: Model = request.getfixturevalue(kind)
    tokens, mask = left_padded((31,))
    cache = Compress("value-norm", 0.5).cache(model)
    handed_over: list[weakref.ref[torch.Tensor]] = []
    for layer in cache.dropping:
        holding, add = layer.holding, layer.holding.add

        def spied(keys: torch.Tensor, values: torch.Tensor, add: object = add) -> object:
            pair = add(keys, values)  # type: ignore[operator]
            handed_over.extend(weakref.ref(one) for one in pair)
            return pair

        holding.add = spied  # type: ignore[method-assign, assignment]
    feed(model.network, cache, tokens, mask, 0, 30)
    gc.collect()
    assert len(handed_over) == 2 * LAYERS
    assert [ref() for ref in handed_over] == [None] * len(handed_over)


@settings(max_examples=25, deadline=None)
@given(budget=st.integers(2, 9), prune_after=st.integers(9, 16), length=st.integers(3, 22), fed=st.integers(1, 5))
def test_a_pruned_layer_never_holds_more_than_was_asked(
    llama: Model, budget: int, prune_after: int, length: int, fed: int
) -> None:
    compress = Compress("key-norm", budget, when="decode", prune_after=prune_after)
    cache = compress.cache(llama)
    tokens, mask = left_padded((length + 3 * fed,))
    held = 0
    for start, stop in [(0, length), *((length + i * fed, length + (i + 1) * fed) for i in range(3))]:
        feed(llama.network, cache, tokens, mask, start, stop)
        held += stop - start
        held = budget if held > prune_after else held
        assert cache.lengths == [held] * LAYERS
        assert cache.get_seq_length() == stop


def test_both_drops_after_the_prompt_and_later(llama: Model) -> None:
    cache = Compress("key-norm", 0.5, when="both", prune_after=12).cache(llama)
    tokens, mask = left_padded((24,))
    found = []
    for start, stop in [(0, 16), *((at, at + 1) for at in range(16, 24))]:
        feed(llama.network, cache, tokens, mask, start, stop)
        found.append(cache.lengths[0])
    assert found == [8, 9, 10, 11, 12, 7, 8, 9, 10]


def test_rows_of_different_lengths_are_cut_when_they_are_long_enough_themselves(llama: Model) -> None:
    cache = Compress("key-norm", 0.5, when="decode", prune_after=12).cache(llama)
    tokens, mask = left_padded((16, 9))
    feed(llama.network, cache, tokens, mask, 0, 16)
    gone = dropped_from(cache, 16)[0]
    assert (~gone).sum(-1).tolist() == [[8, 8], [9, 9]]


def test_beams_carry_their_own_keys(llama: Model) -> None:
    tokens, mask = left_padded((21, 14))
    prompts = [row[keep.bool()].tolist() for row, keep in zip(tokens, mask, strict=True)]
    beams = []
    for rows in ([0, 1], [0], [1]):
        width = max(len(prompts[row]) for row in rows)
        cache = Compress("key-norm", 0.5).cache(llama, seeds=[0] * len(rows) * 3)
        written = llama.network.generate(  # type: ignore[operator]
            input_ids=tokens[rows, 21 - width :],
            attention_mask=mask[rows, 21 - width :],
            max_new_tokens=STEPS,
            num_beams=3,
            do_sample=False,
            cache=cache,
        )
        beams.append(written[:, width:])
    assert torch.equal(beams[0][0, : beams[1].shape[1]], beams[1][0])
    assert torch.equal(beams[0][1, : beams[2].shape[1]], beams[2][0])


def test_a_cache_that_was_reset_starts_anew(llama: Model) -> None:
    cache = Compress("key-norm", 0.5).cache(llama)
    tokens, mask = left_padded((24,))
    first = feed(llama.network, cache, tokens, mask, 0, 20)
    cache.reset()  # type: ignore[no-untyped-call]
    assert cache.nbytes == 0
    assert torch.equal(feed(llama.network, cache, tokens, mask, 0, 20), first)
    assert cache.lengths == [10] * LAYERS


def test_a_cache_that_was_reset_takes_another_number_of_rows(llama: Model) -> None:
    tokens, mask = left_padded((24, 24))
    cache = Compress("random", 0.5).cache(llama)
    feed(llama.network, cache, tokens, mask, 0, 20)
    together = [gone[1] for gone in dropped_from(cache, 20)]
    cache.reset()  # type: ignore[no-untyped-call]
    feed(llama.network, cache, tokens[1:], mask[1:], 0, 20)
    assert cache.lengths == [10] * LAYERS
    assert all(torch.equal(gone[0], old) for gone, old in zip(dropped_from(cache, 20), together, strict=True))


def test_rows_of_one_prompt_share_its_seed(llama: Model) -> None:
    """As transformers lays out beams and several answers: those of one prompt stand together."""
    tokens, mask = left_padded((22, 17))
    compress = Compress("random", 0.5)
    alone = []
    for row, length in ((0, 22), (1, 17)):
        cache = compress.cache(llama, seeds=[5 + row])
        feed(llama.network, cache, tokens[row : row + 1, 22 - length :], mask[row : row + 1, 22 - length :], 0, length)
        alone.append(dropped_from(cache, length))
    cache = compress.cache(llama, seeds=[5, 6])
    feed(llama.network, cache, tokens.repeat_interleave(3, 0), mask.repeat_interleave(3, 0), 0, 22)
    for layer, gone in enumerate(dropped_from(cache, 22)):
        for row in range(6):
            expected = alone[row // 3][layer][0]
            assert torch.equal(gone[row, :, -expected.shape[-1] :], expected)
    for more in ({"num_beams": 3}, {"num_return_sequences": 2, "do_sample": True}):
        written = llama.network.generate(  # type: ignore[operator]
            input_ids=tokens, attention_mask=mask, max_new_tokens=2, cache=compress.cache(llama, seeds=[5, 6]), **more
        )
        assert len(written) == 2 * more.get("num_return_sequences", 1)


def test_random_depends_on_the_prompt_and_the_seed(llama: Model) -> None:
    tokens, mask = left_padded((25,))

    def kept(seed: int) -> list[list[int]]:
        cache = Compress(Random(), 0.5).cache(llama, seeds=[seed])
        feed(llama.network, cache, tokens, mask, 0, 25)
        return [gone[0, 0].nonzero().flatten().tolist() for gone in dropped_from(cache, 25)]

    assert kept(1) == kept(1)
    assert kept(1) != kept(2)
    assert kept(1)[0] != kept(1)[1], "layers draw for themselves"


def test_random_keys_of_a_generation_follow_the_seed_of_the_compression(llama: Model) -> None:
    prompts = [some_tokens(25).tolist()]
    written = [ours(llama, Compress("random", 6, seed=seed), prompts).tolist() for seed in (1, 1, 2, 3)]
    assert written[0] == written[1]
    assert written[0] != written[2] or written[0] != written[3]


def test_every_scorer_can_be_named(llama: Model) -> None:
    prompts = [some_tokens(15).tolist()]
    for name in ANYWHERE:
        with ss.watch(llama):
            assert ours(llama, Compress(name, 0.5, when="both", prune_after=9), prompts).shape[1] > 0


def test_bfloat16(tmp_path: Path) -> None:
    model = load_kind("llama", tmp_path, dtype="bfloat16")
    cache = Compress("expected-attention", 0.5, when="both", prune_after=12).cache(model)
    tokens, mask = left_padded((22, 17))
    feed(model.network, cache, tokens, mask, 0, 18)
    logits = feed(model.network, cache, tokens, mask, 18, 22)
    assert torch.isfinite(logits).all()
    assert cache.dropping[0].keys is not None
    assert cache.dropping[0].keys.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("compress", "lengths"),
    [
        (Compress("key-norm", 0.5), (16, 11)),
        (Compress("key-norm", 0.5, when="decode", prune_after=13), (12, 16)),
    ],
)
def test_padding_stays_hidden_where_a_pass_is_made_without_its_mask(
    llama: Model, compress: Compress, lengths: tuple[int, ...]
) -> None:
    """A mask of ones alone lets the network leave it out; empty slots and padding are still not attended to."""
    tokens, mask = left_padded((*(length + 1 for length in lengths),))
    found = []
    for later in (mask, torch.ones_like(mask)):
        cache = compress.cache(llama, seeds=(0, 0))
        feed(llama.network, cache, tokens, mask, 0, 16)
        with torch.no_grad():
            logits = llama.network(
                input_ids=tokens[:, 16:], attention_mask=later, position_ids=torch.tensor(lengths)[:, None], cache=cache
            ).logits
        found.append(logits)
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-9)


def test_padding_after_a_context_stays_hidden_too(llama: Model) -> None:
    tokens, mask = some_tokens(2, 16), torch.ones(2, 16, dtype=torch.long)
    mask[1, 11:13] = 0  # a shorter question after a context of 11
    found = []
    for later in (mask, torch.ones_like(mask)):
        cache = Compress("key-norm", 0.5).cache(llama, seeds=(0, 0))
        feed(llama.network, cache, tokens, mask, 0, 11)
        feed(llama.network, cache, tokens, mask, 11, 15)
        with torch.no_grad():
            logits = llama.network(
                input_ids=tokens[:, 15:], attention_mask=later, position_ids=torch.tensor([[15], [13]]), cache=cache
            ).logits
        found.append(logits)
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-9)


def test_a_compiled_network_drops_the_same_keys(tmp_path: Path) -> None:
    model, compress = load_kind("llama", tmp_path), Compress("key-norm", 0.4)
    tokens = some_tokens(1, 11)
    expected = ours(model, compress, tokens.tolist())
    model.network.compile(backend="eager")
    try:
        ours(model, None, tokens.tolist())  # graphs are made of passes that drop nothing
        assert torch.equal(ours(model, compress, tokens.tolist()), expected)
        with pytest.raises(UserError, match=r"runs it compiled.*force_eager"):
            stock(model, compress, tokens, torch.ones_like(tokens))
        with torch.compiler.set_stance("force_eager"):
            assert torch.equal(stock(model, compress, tokens, torch.ones_like(tokens)), expected)
    finally:
        torch.compiler.reset()
