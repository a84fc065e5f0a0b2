"""Contexts that are compressed before anything after them is read: as one by one, and never the other way round."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
import torch
from sinkscope.evaluation.compressed.contexts import answers_after, read_contexts, scores_after, together
from sinkscope.evaluation.compressed.watching import watched_for
from transformers import DynamicCache

from sinkscope.compression import Compress, KeyNorm, Protect, Ratio, SkipLayers, compress_prefix
from sinkscope.decoding import Decoding, generate
from sinkscope.decoding.sampling import prompt_seeds
from sinkscope.evaluation.perplexity import sequence_log_likelihood
from sinkscope.families import Model, load_model

COMPRESSIONS = [
    Compress("key-norm", 0.5),
    Compress("random", 0.4, seed=3),
    Compress("snapkv", 0.5),
    Compress("expected-attention", 5),
    Compress("received-attention", 0.6),
    Compress(Protect(KeyNorm(), first=1), SkipLayers(Ratio(0.3), (0,))),
]


@pytest.fixture(scope="module")
def causal(causal_folder: Path) -> Model:
    """An untrained autoregressive model with groups of query heads."""
    return load_model(causal_folder, device="cpu", dtype="float32")


def drawn(seed: int, lengths: Sequence[int]) -> list[list[int]]:
    random = Random(seed)
    return [[random.randint(20, 100) for _ in range(length)] for length in lengths]


@pytest.mark.parametrize("compress", COMPRESSIONS, ids=lambda one: one.how.name)
def test_a_batch_answers_as_prefixes_do_one_by_one(causal: Model, compress: Compress) -> None:
    contexts, questions = drawn(1, [13, 7, 19]), drawn(2, [3, 5, 2])
    settings = Decoding(max_new_tokens=6)
    with watched_for(causal, compress):
        cache = compress.cache(causal, prompt_seeds(contexts, compress.seed))
        held = read_contexts(causal, contexts, cache)
        *_, last = answers_after(causal, held, questions, settings, [0, 0, 0])
        generated = last.canvas[:, held.width + 5 :].tolist()
        for context, question, row in zip(contexts, questions, generated, strict=True):
            prefix = compress_prefix(causal, [context], compress)
            alone = generate(causal, [question], settings, compression=prefix)
            new = alone.sequences[0, alone.prompt_length :].tolist()
            assert row[: len(new)] == new


def test_with_all_keys_answers_and_scores_are_the_plain_ones(causal: Model) -> None:
    contexts, rest = drawn(3, [11, 17]), drawn(4, [4, 7])
    held = read_contexts(causal, contexts, DynamicCache(config=causal.network.config))
    found = scores_after(causal, held, rest, stepwise=False)
    for one, exact in zip(found, sequence_log_likelihood(causal, contexts, rest), strict=True):
        assert float(one.log_likelihoods.sum()) == pytest.approx(exact.value, abs=1e-4)
        assert bool(one.likeliest.all()) == exact.greedy
    assert [len(one.log_likelihoods) for one in found] == [4, 7]


@pytest.mark.parametrize("stepwise", [False, True])
@pytest.mark.parametrize("compress", COMPRESSIONS[:4], ids=lambda one: one.how.name)
def test_scores_are_those_of_a_prefix_fed_by_hand(causal: Model, compress: Compress, stepwise: bool) -> None:
    contexts, rest = drawn(5, [13, 9]), drawn(6, [5, 3])
    cache = compress.cache(causal, prompt_seeds(contexts, compress.seed))
    found = scores_after(causal, read_contexts(causal, contexts, cache), rest, stepwise=stepwise)
    for context, tokens, one in zip(contexts, rest, found, strict=True):
        alone = compress_prefix(causal, [context], compress).cache(causal)
        with torch.no_grad():
            first = causal.network(torch.tensor([context])).logits[0, -1]
            positions = torch.arange(len(context), len(context) + len(tokens) - 1)
            fed = torch.tensor([tokens[:-1]])
            later = causal.network(fed, position_ids=positions.unsqueeze(0), cache=alone).logits[0]
        logits = torch.cat([first.unsqueeze(0), later])
        wanted = logits.log_softmax(-1)[torch.arange(len(tokens)), tokens]
        torch.testing.assert_close(one.log_likelihoods.float(), wanted, atol=2e-4, rtol=0)
        assert one.likeliest.tolist() == (logits.argmax(-1) == torch.tensor(tokens)).tolist()
    assert [len(one.after_first().log_likelihoods) for one in found] == [4, 2]


def test_the_first_token_owes_nothing_to_what_was_kept(causal: Model) -> None:
    contexts, rest = drawn(7, [14]), drawn(8, [4])
    held = [read_contexts(causal, contexts, Compress("key-norm", budget).cache(causal)) for budget in (2, 14)]
    scores = [scores_after(causal, one, rest, stepwise=False) for one in held]
    [few], [all_keys] = scores
    assert float(few.log_likelihoods[0]) == pytest.approx(float(all_keys.log_likelihoods[0]), abs=1e-5)
    assert not torch.allclose(few.log_likelihoods[1:], all_keys.log_likelihoods[1:], atol=1e-3)


def test_one_token_alone_is_scored_without_a_second_pass(causal: Model) -> None:
    contexts = drawn(9, [6, 6])
    held = read_contexts(causal, contexts, Compress("key-norm", 0.5).cache(causal))
    found = scores_after(causal, held, [[21], [34]], stepwise=False)
    exact = sequence_log_likelihood(causal, contexts, [[21], [34]])
    assert [float(one.log_likelihoods.sum()) for one in found] == pytest.approx([one.value for one in exact], abs=1e-5)


def test_batches_are_of_similar_length_and_never_too_large(causal: Model) -> None:
    contexts, rests = [5, 30, 6, 29, 7], [1, 2, 3, 4, 5]
    batches = list(together(causal, contexts, rests, 2))
    assert sorted(number for batch in batches for number in batch) == [0, 1, 2, 3, 4]
    assert max(map(len, batches)) == 2 and batches[0] == [0, 2]
