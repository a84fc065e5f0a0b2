"""Questions after a prefix, whose layers are cut again.

A short question beside a long one keeps what it keeps alone.
"""

import pytest
import torch
from cached_layers import ANYWHERE
from compression_models import LAYERS, feed, load_kind, some_tokens

import sinkscope as ss
from sinkscope.compression import (
    Compress,
    CompressedCache,
    ExpectedAttention,
    Prefix,
    Protect,
    Scorer,
    SnapKV,
    SparseDLLM,
    Tokens,
    compress_prefix,
    make_scorer,
)
from sinkscope.compression.scorers.base import over_neighbours
from sinkscope.errors import UserError
from sinkscope.families import Model

CONTEXT, QUESTIONS, STEPS = 23, (2, 11), 3
OWN: dict[str, Scorer] = {
    "snapkv": SnapKV(window=5, kernel=3),
    "expected-attention": ExpectedAttention(first=1, ahead=7),
    "sparse-dllm": SparseDLLM(last=5),
}
"""Whose windows are shorter than the padding before the short question."""


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return load_kind("llama", tmp_path_factory.mktemp("kinds"))


def kept_positions(cache: CompressedCache, row: int) -> list[list[list[int]]]:
    """Positions of the keys of a row, by layer and key head."""
    found = []
    for layer in cache.dropping:
        contents = layer.holding.contents
        assert contents is not None
        positions, columns = contents.positions()[row], contents.columns_by_head()[row]
        found.append([positions[head[head >= 0]].tolist() for head in columns])
    return found


def kept_after_each_pass(model: Model, prefix: Prefix, questions: list[list[int]]) -> list[list[list[list[list[int]]]]]:
    """By row and pass: the question, then single tokens."""
    longest = max(map(len, questions))
    padding = [longest - len(question) for question in questions]
    rows = [
        [*prefix.tokens, *[0] * pad, *question, 31, 32, 33] for pad, question in zip(padding, questions, strict=True)
    ]
    tokens, mask = torch.tensor(rows), torch.ones(len(rows), len(rows[0]), dtype=torch.long)
    for row, pad in enumerate(padding):
        mask[row, CONTEXT : CONTEXT + pad] = 0
    cache = prefix.cache(model, seeds=[0] * len(rows))
    found: list[list[list[list[list[int]]]]] = [[] for _ in rows]
    stop = CONTEXT
    for length in (longest, *[1] * STEPS):
        feed(model.network, cache, tokens, mask, stop, stop + length)
        stop += length
        for row in range(len(rows)):
            found[row].append(kept_positions(cache, row))
    return found


@pytest.mark.parametrize("name", ANYWHERE)
def test_a_short_question_keeps_beside_a_long_one_what_it_keeps_alone(llama: Model, name: str) -> None:
    compress = Compress(OWN.get(name) or make_scorer(name), Tokens(8), when="both", prune_after=9)
    questions = [some_tokens(length).tolist() for length in QUESTIONS]
    with ss.watch(llama):
        prefix = compress_prefix(llama, [some_tokens(CONTEXT).tolist()], compress)
        together = kept_after_each_pass(llama, prefix, questions)
        for row, question in enumerate(questions):
            alone = kept_after_each_pass(llama, prefix, [question])[0]
            assert together[row] == alone
            assert [len(layer[0]) for layer in alone[0]] == [8] * LAYERS


@pytest.mark.parametrize("scorer", [SnapKV(window=3, kernel=7), SparseDLLM(last=3, kernel=5)], ids=lambda one: one.name)
@pytest.mark.parametrize("number", range(4))
def test_neighbours_are_keys_and_not_the_padding_between(llama: Model, scorer: Scorer, number: int) -> None:
    """With windows shorter than the short question keys of the context have keys of the question beside them."""
    compress = Compress(scorer, Tokens(9), when="both", prune_after=10)
    questions = [some_tokens(length).tolist() for length in (7 + number, 19)]
    with ss.watch(llama):
        prefix = compress_prefix(llama, [some_tokens(CONTEXT).tolist()], compress)
        together = kept_after_each_pass(llama, prefix, questions)
        for row, question in enumerate(questions):
            assert together[row] == kept_after_each_pass(llama, prefix, [question])[0]


def test_pooling_goes_over_slots_without_a_key() -> None:
    values, real = torch.rand(3, 2, 11), torch.rand(3, 2, 11) < 0.6
    pooled = over_neighbours(
        lambda some: torch.nn.functional.max_pool1d(some, 3, 1, 1), values.masked_fill(~real, -1), real
    )
    for row in range(3):
        for head in range(2):
            there = values[row, head][real[row, head]].tolist()
            wanted = [max(there[max(0, at - 1) : at + 2]) for at in range(len(there))]
            assert pooled[row, head][real[row, head]].tolist() == wanted


def test_the_end_of_the_prompt_is_the_end_of_the_question(llama: Model) -> None:
    protecting = Compress(Protect("value-norm", prompt_end=3), Tokens(6), when="both", prune_after=8)
    prefix = compress_prefix(llama, [some_tokens(CONTEXT).tolist()], protecting)
    questions = [some_tokens(length).tolist() for length in QUESTIONS]
    ends = [CONTEXT + length for length in QUESTIONS]
    for end, passes in zip(ends, kept_after_each_pass(llama, prefix, questions), strict=True):
        for layer in passes[-1]:
            for head in layer:
                assert set(range(end - 3, end)) <= set(head)
                assert len(head) <= 8
    # Of the context its own end was protected while it was read.
    for layer in kept_positions(prefix.kept, 0):
        for head in layer:
            assert set(range(CONTEXT - 3, CONTEXT)) <= set(head)


def test_a_question_that_protects_more_than_the_budget_is_refused(llama: Model) -> None:
    passes = 0

    def count(*_: object) -> None:
        nonlocal passes
        passes += 1

    protecting = Compress(Protect("key-norm", prompt_end=6), Tokens(5), when="decode", prune_after=9)
    prefix = compress_prefix(llama, [[20, 21, 22]], protecting)
    hook = llama.network.register_forward_pre_hook(count)
    try:
        with pytest.raises(UserError, match="5 of 10 keys would stay, 6 are protected; keep more or protect fewer"):
            ss.generate(llama, [[30, 31, 32, 33]], ss.Decoding(max_new_tokens=2), compression=prefix)
    finally:
        hook.remove()
    assert passes == 0
