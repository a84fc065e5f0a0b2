"""Log-likelihoods of texts against Llama by hand in float64, in one pass and step by step, masked and not."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from llama_by_hand import Attending, at_once, logits_of, maps_of, plain, row_by_row, strongest, without
from transformers.utils import logging as library_log

from sinkscope.decoding import Decoding, decode
from sinkscope.decoding.protocols import MaskingStats
from sinkscope.errors import TrainedLengthWarning, UserError
from sinkscope.evaluation import (
    KeysCondition,
    little_texts,
    perplexity,
    plan_perplexity,
    prose,
    sequence_log_likelihood,
)
from sinkscope.evaluation.cache_stats import Meter
from sinkscope.evaluation.passages import Passage, read_cached, read_whole
from sinkscope.evaluation.perplexity import _windows
from sinkscope.families import Model, load_model
from sinkscope.interventions import MaskSinks
from sinkscope.sinks import First

PREFIX, VOCABULARY = 5, 101
LENGTHS = (11, 23, 17, 7, 19, 23, 6)
LAYERS, HEADS = 2, 6
SAME: dict[str, Any] = {"detect": "same", "first_step": 0}


@pytest.fixture(scope="module")
def model(causal_folder: Path) -> Model:
    """Grouped queries, random weights."""
    library_log.disable_progress_bar()  # type: ignore[no-untyped-call]
    return load_model(causal_folder, dtype="float32", device="cpu")


@pytest.fixture
def texts() -> list[list[int]]:
    return [torch.randint(VOCABULARY, (length,)).tolist() for length in LENGTHS]


def by_hand(model: Model, tokens: Sequence[int], first: int, attending: Attending = plain) -> torch.Tensor:
    """Log-likelihoods of the tokens from `first` on. The last one is not fed."""
    logits = logits_of(model.network, list(tokens[:-1]), causal=True, attending=attending)
    wanted = torch.tensor(tokens[first:])
    return logits.log_softmax(-1)[first - 1 :].gather(-1, wanted.unsqueeze(-1)).squeeze(-1)


def close(got: Sequence[float], wanted: Sequence[float], tolerance: float = 2e-4) -> None:
    torch.testing.assert_close(
        torch.tensor(got, dtype=torch.float64), torch.tensor(wanted, dtype=torch.float64), atol=0, rtol=tolerance
    )


@pytest.mark.parametrize("batch_size", [1, 3, 16])
def test_plain_likelihoods_are_those_of_one_text_after_the_other(
    model: Model, texts: list[list[int]], batch_size: int
) -> None:
    found = perplexity(model, texts, prefix=PREFIX, batch_size=batch_size)
    wanted = [float(by_hand(model, tokens, PREFIX).sum()) for tokens in texts]
    close(found.log_likelihoods, wanted)
    assert found.counts == tuple(length - PREFIX for length in LENGTHS)
    assert found.tokens == sum(LENGTHS) - PREFIX * len(LENGTHS)
    close([found.nats_per_token], [-sum(wanted) / found.tokens])
    close([found.perplexity], [math.exp(-sum(wanted) / found.tokens)], 2e-3)
    assert (found.stepwise, found.removed, found.intervention) == (False, None, None)


def test_step_by_step_is_the_same_as_at_once(model: Model) -> None:
    lengths = [(7, 5), (2, 11), (13, 1), (5, 8), (1, 3)]
    passages = [
        Passage(given=torch.randint(VOCABULARY, (a,)).tolist(), scored=torch.randint(VOCABULARY, (b,)).tolist(), seed=a)
        for a, b in lengths
    ]
    whole = read_whole(model, passages, KeysCondition())
    cached, stepwise = (
        read_cached(model, passages, KeysCondition(point=one), Meter()) for one in ("context", "decode")
    )
    for passage, one, *others in zip(passages, whole, cached, stepwise, strict=True):
        wanted = by_hand(model, passage.given + passage.scored, len(passage.given))
        torch.testing.assert_close(one.log_likelihoods, wanted, atol=2e-4, rtol=1e-4)
        for other in others:
            torch.testing.assert_close(other.log_likelihoods, one.log_likelihoods, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("keys", [1, 3])
@pytest.mark.parametrize("source", ["masked", "clean", "same"])
def test_the_published_protocol(model: Model, texts: list[list[int]], keys: int, source: str) -> None:
    kinds = {
        "masked": MaskSinks(keys),
        "clean": MaskSinks(keys, detect_from="clean"),
        "same": MaskSinks(keys, detect="same"),
    }
    found = perplexity(model, texts, prefix=PREFIX, batch_size=4, intervention=kinds[source])
    wanted = []
    for tokens in texts:
        maps = maps_of(model.network, tokens[:-1], causal=True)
        wanted.append(float(by_hand(model, tokens, PREFIX, row_by_row(keys, PREFIX, source, maps)).sum()))
    close(found.log_likelihoods, wanted)
    assert found.stepwise
    plain_run = perplexity(model, texts, prefix=PREFIX)
    assert found.counts == plain_run.counts
    assert found.nats_per_token != pytest.approx(plain_run.nats_per_token, rel=1e-3)


@pytest.mark.parametrize("keys", [1, 4])
def test_sinks_of_the_same_pass_are_those_of_the_last_query(model: Model, texts: list[list[int]], keys: int) -> None:
    found = perplexity(model, texts, prefix=PREFIX, batch_size=3, intervention=MaskSinks(keys, **SAME))
    close(found.log_likelihoods, [float(by_hand(model, tokens, PREFIX, at_once(keys, True)).sum()) for tokens in texts])
    assert not found.stepwise


def test_the_first_token_and_groups_and_classes_in_one_pass(model: Model, texts: list[list[int]]) -> None:
    def spared(_: int, scores: torch.Tensor) -> torch.Tensor:
        """Only rows after the given tokens lose the first key."""
        hidden = scores.clone()
        hidden[:, PREFIX:, 0] = -torch.inf
        return hidden.softmax(-1)

    masking = MaskSinks(First(1), queries=("committed",), **SAME)
    wanted = [float(by_hand(model, tokens, PREFIX, spared).sum()) for tokens in texts]
    close(perplexity(model, texts, prefix=PREFIX, intervention=masking).log_likelihoods, wanted)
    # The first token is of the class "prompt", whatever else is in the batch.
    close(
        perplexity(model, texts, prefix=PREFIX, intervention=replace(masking, classes=("prompt",))).log_likelihoods,
        wanted,
    )
    nothing = perplexity(model, texts, prefix=PREFIX, intervention=replace(masking, classes=("newline",)))
    close(nothing.log_likelihoods, perplexity(model, texts, prefix=PREFIX).log_likelihoods, 1e-5)


def test_a_static_cut_is_the_same_in_one_pass_and_step_by_step(model: Model, texts: list[list[int]]) -> None:
    once = MaskSinks(First(2), queries=("committed",), **SAME)
    runs = [perplexity(model, texts, prefix=PREFIX, intervention=masking) for masking in (once, MaskSinks(First(2)))]
    assert [run.stepwise for run in runs] == [False, True]
    close(runs[0].log_likelihoods, runs[1].log_likelihoods, 1e-5)


def test_scored_tokens_are_no_prompt_in_one_pass(model: Model, texts: list[list[int]]) -> None:
    """Of the four strongest keys only those that are scored tokens go."""

    def attending(_: int, scores: torch.Tensor) -> torch.Tensor:
        done = scores.softmax(-1)
        for head in range(len(scores)):
            lost = [key for key in strongest(done[head, -1], 4) if key >= PREFIX]
            done[head] = torch.stack([without(row, lost) for row in scores[head]])
        return done

    special = model.family.special_ids  # of another class
    texts = [[5 if token in special else token for token in tokens] for tokens in texts]
    found = perplexity(model, texts, prefix=PREFIX, intervention=MaskSinks(4, classes=("other",), **SAME))
    close(found.log_likelihoods, [float(by_hand(model, tokens, PREFIX, attending).sum()) for tokens in texts])
    assert found.removed is not None
    assert 0 < float(found.removed.keys) < 4 * len(texts) * LAYERS * HEADS


@pytest.mark.parametrize(
    "masking",
    [
        MaskSinks(2),
        MaskSinks(3, control="random", seed=7),
        MaskSinks(1, detect_from="clean"),
        MaskSinks(2, how="values", layers=(1,), heads=(0, 3)),
    ],
    ids=repr,
)
def test_forced_tokens_are_decoded_tokens(model: Model, masking: MaskSinks) -> None:
    """What `decode` generates gets the likelihoods of its own steps, and loses what it lost then."""
    prompts = [torch.randint(VOCABULARY, (length,)).tolist() for length in (7, 13, 4)]
    sums, removed = torch.zeros(3, dtype=torch.float64), None
    for step in decode(model, prompts, Decoding(max_new_tokens=9), intervention=masking):
        sums += step.confidence[:, -1].double().log().nan_to_num(0)
        removed = step.add_to(removed)
        canvas = step.canvas
    ends = [row.index(17) + 1 if 17 in row else 9 for row in canvas[:, 13:].tolist()]
    answers = [row[:end] for row, end in zip(canvas[:, 13:].tolist(), ends, strict=True)]
    found = sequence_log_likelihood(model, prompts, answers, batch_size=2, intervention=masking)
    close([one.value for one in found], sums.tolist(), 1e-4)
    assert [one.greedy for one in found] == [True] * 3
    assert [one.tokens for one in found] == ends
    assert removed is not None
    for row, one in enumerate(found):
        assert one.removed is not None
        for name, value in vars(removed).items():
            torch.testing.assert_close(vars(one.removed)[name], value[row : row + 1], atol=1e-4, rtol=1e-4)
    wrong = [[*answer[:-1], (answer[-1] + 1) % VOCABULARY] for answer in answers]
    assert not any(one.greedy for one in sequence_log_likelihood(model, prompts, wrong, intervention=masking))


def test_answers_come_in_the_order_given(model: Model) -> None:
    random = Random(5)
    pairs = [([random.randrange(VOCABULARY) for _ in range(a)], [random.randrange(VOCABULARY) for _ in range(b)])
             for a, b in [(3, 7), (11, 1), (1, 5), (5, 2)]]  # fmt: skip
    found = sequence_log_likelihood(model, [one for one, _ in pairs], [other for _, other in pairs], batch_size=3)
    for (prompt, answer), one in zip(pairs, found, strict=True):
        likelihoods = by_hand(model, prompt + answer, len(prompt))
        close([one.value], [float(likelihoods.sum())])
        assert (one.tokens, one.removed) == (len(answer), None)
        best = logits_of(model.network, (prompt + answer)[:-1], causal=True)[len(prompt) - 1 :].argmax(-1).tolist()
        assert one.greedy == (best == answer)


def test_no_keys_is_the_plain_run_bit_for_bit(model: Model, texts: list[list[int]]) -> None:
    for nothing in (MaskSinks(0), MaskSinks(0, **SAME)):
        found = perplexity(model, texts, prefix=PREFIX, intervention=nothing)
        assert found.log_likelihoods == perplexity(model, texts, prefix=PREFIX).log_likelihoods
        assert (found.removed, found.stepwise) == (None, False)
        assert found.intervention == nothing.to_dict()


def test_what_was_removed_is_counted(model: Model, texts: list[list[int]]) -> None:
    removed = perplexity(model, texts, prefix=PREFIX, batch_size=3, intervention=MaskSinks(2)).removed
    assert isinstance(removed, MaskingStats)
    steps = sum(length - PREFIX - 1 for length in LENGTHS)  # the last token of a text is never fed
    assert removed.keys.tolist() == [2 * steps * LAYERS * HEADS]
    assert removed.units.tolist() == [steps * LAYERS * HEADS]
    once = perplexity(model, texts, prefix=PREFIX, batch_size=3, intervention=MaskSinks(2, **SAME)).removed
    assert once is not None
    assert once.keys.tolist() == [2 * len(texts) * LAYERS * HEADS]
    means = removed.to_dict()
    assert means["mask_share"] == 0
    assert means["mass"] is not None and 0 < means["mass"] < 1


@pytest.mark.parametrize(
    "masking", [None, MaskSinks(2), MaskSinks(2, control="random"), MaskSinks(1, **SAME)], ids=repr
)
def test_batches_do_not_change_what_comes_out(model: Model, texts: list[list[int]], masking: MaskSinks | None) -> None:
    runs = [perplexity(model, texts, prefix=PREFIX, batch_size=size, intervention=masking) for size in (1, 2, 7)]
    backwards = perplexity(model, texts[::-1], prefix=PREFIX, batch_size=3, intervention=masking)
    bare = replace(model, family=replace(model.family, position_offset=None))
    for other in (
        runs[1].log_likelihoods,
        runs[2].log_likelihoods,
        backwards.log_likelihoods[::-1],
        perplexity(bare, texts, prefix=PREFIX, batch_size=7, intervention=masking).log_likelihoods,
    ):
        close(other, runs[0].log_likelihoods, 1e-5)


def test_controls_of_texts_with_one_prefix_draw_apart(model: Model) -> None:
    """A random control must not cut the same places of every text."""
    start = torch.randint(VOCABULARY, (PREFIX,)).tolist()
    texts = [start + torch.randint(VOCABULARY, (9,)).tolist() for _ in range(2)]
    seeds = {passage.seed for passage in plan_perplexity(model, texts, prefix=PREFIX).passages}
    assert len(seeds) == 2
    drawn = [
        perplexity(model, texts, prefix=PREFIX, intervention=MaskSinks(2, control="random", seed=seed)).log_likelihoods
        for seed in (0, 0, 1)
    ]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize("masking", [None, MaskSinks(1)], ids=repr)
def test_long_texts_are_read_in_windows(model: Model, masking: MaskSinks | None) -> None:
    lengths, context, stride = (31, 9, 43, 13), 13, 5
    texts = [torch.randint(VOCABULARY, (length,)).tolist() for length in lengths]
    found = perplexity(model, texts, prefix=PREFIX, context=context, stride=stride, batch_size=3, intervention=masking)
    for tokens, got in zip(texts, found.log_likelihoods, strict=True):
        total, done, end = 0.0, PREFIX, min(context, len(tokens))
        while done < len(tokens):
            window = tokens[max(0, end - context) : end]
            first = len(window) - (end - done)
            attending = plain if masking is None else row_by_row(1, first, "masked", {})
            total += float(by_hand(model, window, first, attending).sum())
            done, end = end, min(end + stride, len(tokens))
        close([got], [total])
    assert found.counts == tuple(length - PREFIX for length in lengths)
    assert (found.context, found.stride) == (context, stride)


@given(st.integers(1, 20), st.integers(2, 30), st.integers(1, 29), st.integers(1, 90))
def test_windows_score_every_token_once(prefix: int, context: int, stride: int, extra: int) -> None:
    assume(prefix < context and stride < context)
    tokens = list(range(prefix + extra))
    windows = _windows(tokens, prefix, context, stride)
    assert [token for window in windows for token in window.scored] == tokens[prefix:]
    for number, window in enumerate(windows):
        assert window.length <= context
        assert len(window.given) >= (min(prefix, context - stride) if number else prefix)
        assert window.given + window.scored == tokens[window.scored[-1] + 1 - window.length : window.scored[-1] + 1]
        assert window.length == min(context, window.scored[-1] + 1)


@pytest.mark.parametrize("masking", [None, MaskSinks(1), MaskSinks(1, **SAME)], ids=repr)
def test_half_precision_is_near(masking: MaskSinks | None) -> None:
    exact = load_model("twin-ar", dtype="float32", device="cpu")
    rough = load_model("twin-ar", dtype="bfloat16", device="cpu")
    texts = little_texts(6)
    wanted = perplexity(exact, texts, intervention=masking)
    assert perplexity(rough, texts, intervention=masking).nats_per_token == pytest.approx(
        wanted.nats_per_token, rel=0.05
    )


def test_text_goes_through_the_tokenizer_and_long_ones_are_warned_of() -> None:
    model = load_model("twin-ar", device="cpu")
    text = "The key of amber is 90. The key of ivory is 84. What is the key of ivory? => 84 <eos>"
    assert model.tokenizer is not None
    ids = model.tokenizer(text)["input_ids"]
    one, other = perplexity(model, text, prefix=4), perplexity(model, [ids], prefix=4)
    assert one == other
    assert one.tokens == len(ids) - 4
    short = replace(model, family=replace(model.family, trained_length=20))
    with pytest.warns(TrainedLengthWarning, match="at most 20 tokens; one here has") as caught:
        perplexity(short, [text, text], prefix=4, batch_size=1)
    assert len(caught) == 1
    with pytest.warns(TrainedLengthWarning):
        sequence_log_likelihood(short, [ids[:20]], [ids[20:]])


def test_the_observer_hears_of_finished_texts(model: Model) -> None:
    texts = [torch.randint(VOCABULARY, (length,)).tolist() for length in (9, 31, 9)]
    seen: list[int] = []
    perplexity(model, texts, prefix=PREFIX, context=13, stride=4, batch_size=2, observer=seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 3
    assert seen[0] < 3
    pairs: list[int] = []
    sequence_log_likelihood(model, texts, texts, batch_size=2, observer=pairs.append)
    assert pairs == [2, 3]


def test_a_result_is_json(model: Model, texts: list[list[int]]) -> None:
    for masking in (None, MaskSinks(1)):
        found = perplexity(model, texts, prefix=PREFIX, intervention=masking)
        told = json.loads(json.dumps(found.to_dict()))
        assert told["perplexity"] == found.perplexity
        assert told["counts"] == list(found.counts)
        assert (told["removed"] is None) == (masking is None)


def refusals() -> list[tuple[dict[str, Any], str]]:
    long = [[1] * 65]
    masking = {"prefix": 3}
    return [
        ({"texts": []}, "no texts were given"),
        ({"texts": "Ann has"}, "no tokenizer"),
        (
            {"texts": [[1, 2, 3, 4, 5], [1, 2]], "prefix": 4},
            "text 1 has 2 tokens, and after a prefix of 4 none is left",
        ),
        ({"texts": [[1, 2, 3, 4]], "prefix": 4}, "the text has 4 tokens, and after a prefix of 4 none"),
        ({"texts": [[1, 2, 101]]}, "holds token id 101"),
        ({"texts": long}, "the text has 65 tokens, the context is 64; shorten it, or give a stride"),
        ({"texts": long, "context": 65, "stride": 3}, "context 65 is more than the 64 tokens of"),
        ({"texts": long, "context": 32, "stride": 32}, "stride 32 must be less than the context of 32"),
        (
            {"texts": long, "context": 16, "stride": 4},
            "a prefix of 16 tokens leaves nothing to score in a context of 16",
        ),
        ({"stride": 0}, "stride must be a whole number of at least 1, got 0"),
        ({"prefix": 0}, "prefix must be a whole number of at least 1, got 0"),
        ({"context": 0}, "context must be a whole number"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1, got 0"),
        ({**masking, "intervention": MaskSinks(3)}, "3 keys can't be masked where there are 3"),
        ({**masking, "intervention": MaskSinks(7, **SAME)}, "7 keys can't be masked where there are 7"),
        ({**masking, "intervention": MaskSinks(1, layers=(2,))}, "no layer 2"),
        ({**masking, "intervention": MaskSinks(1, first_step=17)}, "masking begins at step 17, counted from 0"),
        ({**masking, "intervention": MaskSinks(1, control="mask-matched")}, "needs mask tokens"),
    ]


@pytest.mark.parametrize(("options", "message"), refusals())
def test_what_is_refused_before_the_first_pass(model: Model, options: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"texts": [[*range(20)], [*range(8)]], "prefix": 16 if "texts" in options else 3, **options}
    passes: list[torch.nn.Module] = []
    hook = model.network.register_forward_pre_hook(lambda network, _: passes.append(network))
    with pytest.raises(UserError, match=message) as refused:
        perplexity(model, **given)
    hook.remove()
    assert "\n" not in str(refused.value)
    assert passes == []


@pytest.mark.parametrize(
    ("prompts", "answers", "options", "message"),
    [
        ([], [], {}, "every prompt needs one answer, got 0 prompts and 0 answers"),
        ([[1]], [[1], [2]], {}, "got 1 prompts and 2 answers"),
        ([[1], []], [[1], [2]], {}, "prompt 1 is empty"),
        ([[1], [2]], [[], [2]], {}, "answer 0 is empty"),
        (["Ann"], [[2]], {}, "prompt 0 is text, token ids were wanted"),
        ([[1]], [[101]], {}, "answer 0 holds token id 101, the model's vocabulary has ids 0 to 100"),
        ([[1], [1] * 33], [[1], [2] * 32], {}, "prompt with answer 1 has 65 tokens, the context of .* is 64"),
        ([[1, 2, 3]], [[1]], {"intervention": MaskSinks(1)}, "passed at most 1 time, and masking begins at step 1"),
        ([[1]], [[1]], {"batch_size": -1}, "batch_size must be"),
    ],
)
def test_pairs_that_are_refused(
    model: Model, prompts: list[Any], answers: list[Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message) as refused:
        sequence_log_likelihood(model, prompts, answers, **options)
    assert "\n" not in str(refused.value)


def test_models_of_the_other_kind(tiny: Any) -> None:
    with pytest.raises(UserError, match=r"llada-tiny \(llada\) sees in both directions; use `infilling_accuracy`"):
        perplexity(tiny("llada-tiny"), [[1, 2, 3]])
    with pytest.raises(UserError, match="use `log_likelihood`"):
        sequence_log_likelihood(tiny("llada-tiny"), [[1]], [[2]])


def test_packaged_texts() -> None:
    assert len(prose()) == 8
    assert all(100 < len(text.split()) < 200 for text in prose())
    texts = little_texts(40, length=48)
    assert texts[:7] == little_texts(7, length=48) != little_texts(7, length=48, seed=1)
    assert {len(text) for text in texts} <= {*range(24, 49)}
    assert all(text[-2:] != [2, 2] for text in texts)
    assert min(map(len, little_texts(200, length=24))) >= 12  # some documents have less to tell
    model = load_model("twin-ar", device="cpu")
    assert perplexity(model, texts).nats_per_token < 1  # knows its language
    with pytest.raises(UserError, match="length must be at least 24"):
        little_texts(1, length=23)
    with pytest.raises(UserError, match="n must be a whole number"):
        little_texts(0)
