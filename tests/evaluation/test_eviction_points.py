"""Exact answers with keys dropped: by every way the answers of `evaluate` and `compress_prefix`, weighed."""

from collections.abc import Callable
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any

import pytest

from sinkscope.compression import Compress, SkipLayers, compress_prefix
from sinkscope.decoding import Decoding, Denoising, generate
from sinkscope.errors import UserError
from sinkscope.evaluation import (
    LITTLE,
    BlockCaching,
    Examples,
    KeysCondition,
    MeasureOptions,
    evaluate,
    examples,
    find_measure,
    find_task,
    task_settings,
)
from sinkscope.evaluation.answers import ExactAnswers, _decoding
from sinkscope.evaluation.cache_stats import watched_for
from sinkscope.families import Model, load_model
from sinkscope.grids import Outcome
from sinkscope.interventions import MaskSinks
from sinkscope.sinks import First

HALF = Compress("key-norm", 0.5)


@pytest.fixture(scope="module")
def twin(twin_folders: dict[str, Path]) -> Model:
    """An untrained autoregressive twin."""
    return load_model(twin_folders["twin-ar"], device="cpu")


@pytest.fixture(scope="module")
def diffusion(twin_folders: dict[str, Path]) -> Model:
    """An untrained diffusion twin."""
    return load_model(twin_folders["twin-dlm"], device="cpu")


def laid_out(model: Model, task: str = "passkey", when: str | None = None, **blocks: object) -> ExactAnswers:
    examples, caching = Examples(n=5, seed=2, max_example_tokens=36, batch_size=3), BlockCaching(**blocks)  # type: ignore[arg-type]
    measure = find_measure(task, MeasureOptions(examples=examples, cached=True, when=when, blocks=caching))(model)
    assert isinstance(measure, ExactAnswers)
    return measure


def ran(
    measure: ExactAnswers, compress: Compress | None, masking: MaskSinks | None = None
) -> tuple[Outcome, dict[str, Any]]:
    condition = KeysCondition(masking, compress, measure.point)
    measure.check(condition)
    found = measure.run(condition, silent)
    return found.outcome, found.stats


def silent(_: int) -> None:
    """Nobody watches."""


def always(expected: str, got: str) -> bool:
    """Untrained models are never right; this asks whether they said what they were expected to say."""
    return expected == got


@pytest.mark.parametrize("name", sorted(LITTLE))
def test_a_context_is_the_head_of_its_prompt(name: str) -> None:
    for one in examples(find_task(name), 4, max_example_tokens=40):
        assert one.prompt.startswith(one.context) and one.prompt != one.context
        assert (one.context == "") == (name in ("copy", "reverse", "sort"))


@pytest.mark.filterwarnings("ignore::sinkscope.errors.TrainedLengthWarning")
def test_tokens_are_cut_where_the_question_begins(twin: Model) -> None:
    assert twin.tokenizer is not None
    measure = laid_out(twin, "lookup")
    for example, asked in zip(measure.examples, measure.questions, strict=True):
        assert asked.prompt == list(twin.tokenizer(example.prompt)["input_ids"])
        assert asked.context == list(twin.tokenizer(example.context)["input_ids"])
        assert str(twin.tokenizer.decode(asked.asked)).startswith("What is the key")


def said_by(measure: ExactAnswers, texts: list[str]) -> ExactAnswers:
    """The same with what should be said in place of the answers."""
    expected = tuple(replace(one, answer=text) for one, text in zip(measure.examples, texts, strict=True))
    return replace(measure, examples=expected, kind=replace(measure.kind, is_right=always))


@pytest.mark.parametrize("compress", [None, HALF, Compress("random", 0.3, seed=5), Compress("kvzip:first=2", 0.4)])
def test_contexts_are_compressed_before_the_question(twin: Model, compress: Compress | None) -> None:
    measure, settings = laid_out(twin), Decoding(max_new_tokens=4)
    texts = []
    for one in measure.questions:
        if compress is None:
            result = generate(twin, [one.prompt], settings)
        else:
            result = generate(twin, [one.asked], settings, compression=compress_prefix(twin, [one.context], compress))
        assert result.text is not None
        texts.append(result.text[0])
    outcome, stats = ran(said_by(measure, texts), compress)
    assert outcome.score == 1 and outcome.exact and outcome.n == 5
    lengths = [len(one.context) for one in measure.questions]
    kept = sum(lengths if compress is None else [compress.much.kept(length, 0) for length in lengths])
    assert stats["kept"] == pytest.approx(kept / sum(lengths))


@pytest.mark.parametrize(
    ("when", "compress"),
    [("prompt", HALF), ("prompt", None), ("decode", Compress("streaming", 6, when="decode", prune_after=9))],
)
def test_other_ways_answer_as_evaluate_does(twin: Model, when: str, compress: Compress | None) -> None:
    measure = laid_out(twin, when=when)
    score = evaluate(twin, "passkey", n=5, seed=2, max_example_tokens=36, batch_size=3, compression=compress)
    got = {one.prompt: one.got for one in score.wrong}
    assert len(got) == 5  # untrained: all are wrong, so all are told
    outcome, stats = ran(said_by(measure, [got[one.prompt] for one in measure.examples]), compress)
    assert outcome.score == 1
    assert (stats["kept"] == 1) == (compress is None)


@pytest.mark.parametrize("cache", ["dual", "prefix"])
def test_diffusion_models_drop_in_their_block_caches(diffusion: Model, cache: str) -> None:
    measure = laid_out(diffusion, cache=cache, length=2)
    own = task_settings(diffusion, find_task("passkey"))
    assert isinstance(own, Denoising)
    settings = replace(own, cache=cache, block_length=2)
    assert measure.decoding == settings and measure.point == "block"
    score = evaluate(
        diffusion, "passkey", n=5, seed=2, max_example_tokens=36, batch_size=3, settings=settings, compression=HALF
    )  # fmt: skip
    got = {one.prompt: one.got for one in score.wrong}
    outcome, stats = ran(said_by(measure, [got[one.prompt] for one in measure.examples]), HALF)
    assert outcome.score == 1
    kept = there = 0
    for one in measure.questions:
        for block in (0, 1):
            context = len(one.prompt) + 2 * block + (2 * (1 - block) if cache == "dual" else 0)
            kept, there = kept + ceil(context / 2), there + context
    assert stats["kept"] == pytest.approx(kept / there)
    assert any("first pass" in note for note in measure.notes)


def test_a_block_length_holds_where_a_family_has_no_blocks_too(tiny: Callable[[str], Model]) -> None:
    dream = tiny("dream-tiny")
    for length in (None, 2):
        found = _decoding(dream, find_task("passkey"), MeasureOptions(cached=True, blocks=BlockCaching(length=length)))
        assert isinstance(found, Denoising) and (found.block_length, found.cache) == (length, "dual")


def test_less_is_held_the_more_is_dropped(twin: Model, diffusion: Model) -> None:
    for model in (twin, diffusion):
        measure = laid_out(model)
        held = [
            ran(measure, one)[1]["cache_bytes"] for one in (None, Compress("key-norm", 0.5), Compress("key-norm", 0.1))
        ]
        assert held[0] > 1.7 * held[1] > 2 * held[2] > 0


def test_layers_that_are_skipped_count(twin: Model) -> None:
    measure = laid_out(twin)
    lengths = [len(one.context) for one in measure.questions]
    _, stats = ran(measure, Compress("key-norm", SkipLayers(0.2, (0,))))
    kept = sum(length + ceil(length / 5) for length in lengths)
    assert stats["kept"] == pytest.approx(kept / (2 * sum(lengths)))


def test_a_scorer_that_needs_attention_has_it(twin: Model) -> None:
    outcome, stats = ran(laid_out(twin), Compress("received-attention", 0.5))
    assert outcome.n == 5 and 0.5 <= stats["kept"] < 0.6


def test_the_observer_hears_of_every_batch(twin: Model) -> None:
    told: list[int] = []
    laid_out(twin).run(KeysCondition(compression=HALF, point="context"), told.append)
    assert told == [3, 5]


@pytest.mark.parametrize(
    ("task", "when", "kind", "said"),
    [
        ("copy", "context", "twin-ar", "no context before its question"),
        ("copy", None, "twin-ar", "no context before its question"),
        ("passkey", "context", "twin-dlm", "sees in both directions: --when context is not for it, use block"),
        ("passkey", "block", "twin-ar", "has no block cache: --when block is not for it, use context, prompt, decode"),
        ("passkey", "never", "twin-ar", "--when must be one of"),
        ("chess", None, "twin-ar", "unknown task 'chess'; choose one of arithmetic-1, "),
        ("perplexity", "prompt", "twin-ar", "--when prompt is not for it, use context, decode"),
        ("perplexity", None, "twin-dlm", "sees in both directions"),
    ],
)
def test_what_can_not_be_measured_is_refused(
    twin: Model, diffusion: Model, task: str, when: str | None, kind: str, said: str
) -> None:
    model = {"twin-ar": twin, "twin-dlm": diffusion}[kind]
    with pytest.raises(UserError) as caught:
        find_measure(task, MeasureOptions(examples=Examples(n=2, max_example_tokens=36), cached=True, when=when))(model)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_refusal_names_the_example(twin: Model) -> None:
    protected = Compress("key-norm", 3)
    measure = laid_out(twin)
    measure.check(KeysCondition(compression=protected, point="context"))
    with pytest.raises(UserError, match=r"no layer 7 to skip"):
        measure.check(KeysCondition(compression=Compress("key-norm", SkipLayers(0.5, (7,))), point="context"))


def test_bytes_of_an_example_do_not_hang_on_who_shares_its_batch(twin: Model, diffusion: Model) -> None:
    for model in (twin, diffusion):
        for compress in (None, Compress("random", 0.5)):
            alone, together = (ran(replace(laid_out(model), batch_size=size), compress)[1] for size in (1, 5))
            # The few bytes that a row has whatever its length shrink with the share of its slots that is filled.
            assert together["cache_bytes"] == pytest.approx(alone["cache_bytes"], rel=1e-3)
            assert together["kept"] == alone["kept"]


BOTH = [
    ("twin-ar", "prompt", HALF),
    ("twin-ar", "prompt", Compress("received-attention", 0.5)),
    ("twin-ar", "decode", Compress("streaming", 6, when="decode", prune_after=9)),
    ("twin-dlm", "block", HALF),
    ("twin-dlm", "block", Compress("random", 0.4, seed=5)),
]


@pytest.mark.parametrize(
    "masking", [MaskSinks(2), MaskSinks(First(1), control="random", seed=3)], ids=["sinks", "random"]
)
@pytest.mark.parametrize(("kind", "when", "compress"), BOTH)
def test_a_masked_run_over_a_compressed_cache_answers_as_generate_does(
    twin: Model, diffusion: Model, kind: str, when: str, compress: Compress, masking: MaskSinks
) -> None:
    """Answer by answer, each prompt generated alone."""
    model = {"twin-ar": twin, "twin-dlm": diffusion}[kind]
    measure = laid_out(model, when=when)
    texts = []
    with watched_for(model, compress):
        for one in measure.questions:
            alone = generate(model, [one.prompt], measure.decoding, intervention=masking, compression=compress)
            assert alone.text is not None
            texts.append(alone.text[0])
    outcome, stats = ran(said_by(measure, texts), compress, masking)
    assert outcome.numerators.tolist() == [1.0] * 5
    assert stats["removed"]["keys"] > 0 and stats["kept"] < 1
    unmasked, _ = ran(said_by(measure, texts), compress)
    undropped, _ = ran(said_by(measure, texts), None, masking)
    assert min(unmasked.score, undropped.score) < 1  # both were at work


def test_a_masked_run_over_a_compressed_context_answers_as_after_its_prefix(twin: Model) -> None:
    measure, masking, settings = laid_out(twin, when="context"), MaskSinks(First(1)), Decoding(max_new_tokens=4)
    texts = []
    for one in measure.questions:
        prefix = compress_prefix(twin, [one.context], HALF)
        alone = generate(twin, [one.asked], settings, intervention=masking, compression=prefix)
        assert alone.text is not None
        texts.append(alone.text[0])
    outcome, stats = ran(said_by(measure, texts), HALF, masking)
    assert outcome.score == 1 and stats["removed"]["keys"] == 1
