"""Contexts that are read, and compressed, before anything after them: as one by one, and never the other way round."""

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
import torch

from sinkscope.compression import Compress, KeyNorm, Protect, Ratio, SkipLayers, compress_prefix
from sinkscope.decoding import Decoding, generate
from sinkscope.evaluation import KeysCondition, sequence_log_likelihood
from sinkscope.evaluation.cache_stats import Meter, watched_for
from sinkscope.evaluation.eviction_points import Question, answering
from sinkscope.evaluation.passages import Passage, Reading, check_passages, read
from sinkscope.families import Model, load_model

COMPRESSIONS = [
    Compress("key-norm", 0.5),
    Compress("random", 0.4, seed=3),
    Compress("snapkv", 0.5),
    Compress("expected-attention", 5),
    Compress("received-attention", 0.6),
    Compress(Protect(KeyNorm(), first=1), SkipLayers(Ratio(0.3), (0,))),
]
CLOSE = 2e-4
"""Nats by which two ways of computing a token may differ in float32."""


@pytest.fixture(scope="module")
def causal(causal_folder: Path) -> Model:
    """An untrained autoregressive model with groups of query heads."""
    return load_model(causal_folder, device="cpu", dtype="float32")


def drawn(seed: int, lengths: Sequence[int]) -> list[list[int]]:
    random = Random(seed)
    return [[random.randint(20, 100) for _ in range(length)] for length in lengths]


def readings(
    model: Model, contexts: list[list[int]], rest: list[list[int]], condition: KeysCondition, batch_size: int = 5
) -> list[Reading]:
    """Through `read`, in the order given."""
    passages = [Passage(given=given, scored=scored, seed=0) for given, scored in zip(contexts, rest, strict=True)]
    check_passages(model, passages, batch_size, condition)
    found: dict[int, Reading] = {}
    with watched_for(model, condition.compression):
        for numbers, some in read(model, passages, condition, batch_size=batch_size):
            found.update(zip(numbers, some, strict=True))
    return [found[number] for number in range(len(passages))]


@pytest.mark.parametrize("compress", COMPRESSIONS, ids=lambda one: one.how.name)
def test_a_batch_answers_as_prefixes_do_one_by_one(causal: Model, compress: Compress) -> None:
    contexts, questions = drawn(1, [13, 7, 19]), drawn(2, [3, 5, 2])
    settings = Decoding(max_new_tokens=6)
    how = answering(causal, settings, KeysCondition(compression=compress, point="context"), Meter())
    asked = [Question(context=context, asked=tokens) for context, tokens in zip(contexts, questions, strict=True)]
    how.check(asked)
    with watched_for(causal, compress):
        generated = how.answers(asked).generated.tolist()
        for context, question, row in zip(contexts, questions, generated, strict=True):
            prefix = compress_prefix(causal, [context], compress)
            alone = generate(causal, [question], settings, compression=prefix)
            new = alone.sequences[0, alone.prompt_length :].tolist()
            assert row[: len(new)] == new


def by_hand(model: Model, context: list[int], tokens: list[int], compress: Compress) -> torch.Tensor:
    """Logits of tokens after a prefix that `compress_prefix` compressed, (token, vocabulary)."""
    cache = compress_prefix(model, [context], compress).cache(model)
    with torch.no_grad():
        first = model.network(torch.tensor([context])).logits[0, -1]
        positions = torch.arange(len(context), len(context) + len(tokens) - 1)
        fed = torch.tensor([tokens[:-1]])
        later = model.network(fed, position_ids=positions.unsqueeze(0), cache=cache).logits[0]
    return torch.cat([first.unsqueeze(0), later])


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("compress", COMPRESSIONS, ids=lambda one: one.how.name)
def test_scores_are_those_of_a_prefix_fed_by_hand(causal: Model, compress: Compress, batch_size: int) -> None:
    contexts, rest = drawn(5, [13, 9, 11]), drawn(6, [5, 3, 6])
    condition = KeysCondition(compression=compress, point="context")
    found = readings(causal, contexts, rest, condition, batch_size)
    for context, tokens, one in zip(contexts, rest, found, strict=True):
        with watched_for(causal, compress):
            logits = by_hand(causal, context, tokens, compress)
        wanted = logits.log_softmax(-1)[torch.arange(len(tokens)), tokens]
        torch.testing.assert_close(one.log_likelihoods.float(), wanted, atol=CLOSE, rtol=0)
        assert one.greedy == (logits.argmax(-1) == torch.tensor(tokens)).all()


@pytest.mark.parametrize("point", ["context", "decode"])
def test_with_all_keys_scores_are_the_plain_ones(causal: Model, point: str) -> None:
    contexts, rest = drawn(3, [11, 17, 6]), drawn(4, [4, 7, 1])
    found = readings(causal, contexts, rest, KeysCondition(point=point))
    for one, exact in zip(found, sequence_log_likelihood(causal, contexts, rest), strict=True):
        assert one.total == pytest.approx(exact.value, abs=CLOSE) and one.greedy == exact.greedy
    assert [len(one.log_likelihoods) for one in found] == [4, 7, 1]


def test_the_first_token_owes_nothing_to_what_was_kept(causal: Model) -> None:
    contexts, rest = drawn(7, [14]), drawn(8, [4])
    conditions = [KeysCondition(compression=Compress("key-norm", budget), point="context") for budget in (2, 14)]
    [few], [all_keys] = (readings(causal, contexts, rest, one) for one in conditions)
    assert float(few.log_likelihoods[0]) == pytest.approx(float(all_keys.log_likelihoods[0]), abs=1e-5)
    assert not torch.allclose(few.log_likelihoods[1:], all_keys.log_likelihoods[1:], atol=1e-3)


def test_one_token_alone_is_scored_without_a_second_pass(causal: Model) -> None:
    contexts, passes = drawn(9, [6, 6]), []
    hook = causal.network.register_forward_pre_hook(lambda network, _: passes.append(network))
    condition = KeysCondition(compression=Compress("key-norm", 0.5), point="context")
    found = readings(causal, contexts, [[21], [34]], condition)
    hook.remove()
    exact = sequence_log_likelihood(causal, contexts, [[21], [34]])
    assert [one.total for one in found] == pytest.approx([one.value for one in exact], abs=1e-5)
    assert len(passes) == 1
