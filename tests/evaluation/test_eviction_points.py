"""Exact answers with keys dropped: by every way the answers of `evaluate` and `compress_prefix`, weighed."""

from collections.abc import Callable
from dataclasses import replace
from math import ceil
from pathlib import Path

import pytest
from sinkscope.evaluation.compressed import Blocks, Choice, Examples, find_measure
from sinkscope.evaluation.compressed.questions import Questions, _settings

from sinkscope.compression import Compress, SkipLayers, compress_prefix
from sinkscope.decoding import Decoding, Denoising, generate
from sinkscope.errors import UserError
from sinkscope.evaluation import TASKS, evaluate, examples, find_task, task_settings
from sinkscope.families import Model, load_model

HALF = Compress("key-norm", 0.5)


@pytest.fixture(scope="module")
def twin(twin_folders: dict[str, Path]) -> Model:
    """An untrained autoregressive twin."""
    return load_model(twin_folders["twin-ar"], device="cpu")


@pytest.fixture(scope="module")
def diffusion(twin_folders: dict[str, Path]) -> Model:
    """An untrained diffusion twin."""
    return load_model(twin_folders["twin-dlm"], device="cpu")


def laid_out(model: Model, task: str = "passkey", when: str | None = None, **blocks: object) -> Questions:
    choice = Choice(
        examples=Examples(n=5, seed=2, room=36, batch_size=3), when=when, blocks=Blocks(**blocks)  # type: ignore[arg-type]
    )  # fmt: skip
    measure = find_measure(task, choice)(model)
    assert isinstance(measure, Questions)
    return measure


def silent(_: int) -> None:
    """Nobody watches."""


def always(expected: str, got: str) -> bool:
    """Untrained models are never right; this asks whether they said what they were expected to say."""
    return expected == got


@pytest.mark.parametrize("name", sorted(TASKS))
def test_a_context_is_the_head_of_its_prompt(name: str) -> None:
    for one in examples(find_task(name), 4, room=40):
        assert one.prompt.startswith(one.context) and one.prompt != one.context
        assert (one.context == "") == (name in ("copy", "reverse", "sort"))


@pytest.mark.filterwarnings("ignore::sinkscope.errors.TrainedLengthWarning")
def test_tokens_are_cut_where_the_question_begins(twin: Model) -> None:
    assert twin.tokenizer is not None
    measure = laid_out(twin, "lookup")
    for example, asked in zip(measure.examples, measure.asked, strict=True):
        assert asked.whole == list(twin.tokenizer(example.prompt)["input_ids"])
        assert asked.context == list(twin.tokenizer(example.context)["input_ids"])
        assert str(twin.tokenizer.decode(asked.question)).startswith("What is the key")


def said_by(measure: Questions, texts: list[str]) -> Questions:
    """The same with what should be said in place of the answers."""
    expected = tuple(replace(one, answer=text) for one, text in zip(measure.examples, texts, strict=True))
    return replace(measure, examples=expected, is_right=always)


@pytest.mark.parametrize("compress", [None, HALF, Compress("random", 0.3, seed=5)])
def test_contexts_are_compressed_before_the_question(twin: Model, compress: Compress | None) -> None:
    measure, settings = laid_out(twin), Decoding(max_new_tokens=4)
    texts = []
    for one in measure.asked:
        if compress is None:
            result = generate(twin, [one.whole], settings)
        else:
            result = generate(
                twin, [one.question], settings, compression=compress_prefix(twin, [one.context], compress)
            )
        assert result.text is not None
        texts.append(result.text[0])
    outcome, weighed = said_by(measure, texts).run(compress, silent)
    assert outcome.score == 1 and outcome.exact and outcome.n == 5
    lengths = [len(one.context) for one in measure.asked]
    kept = sum(lengths if compress is None else [compress.much.kept(length, 0) for length in lengths])
    assert weighed.kept == pytest.approx(kept / sum(lengths))


@pytest.mark.parametrize(
    ("when", "compress"),
    [("prompt", HALF), ("prompt", None), ("decode", Compress("streaming", 6, when="decode", prune_after=9))],
)
def test_other_ways_answer_as_evaluate_does(twin: Model, when: str, compress: Compress | None) -> None:
    measure = laid_out(twin, when=when)
    score = evaluate(twin, "passkey", n=5, seed=2, room=36, batch_size=3, compression=compress)
    got = {one.prompt: one.got for one in score.wrong}
    assert len(got) == 5  # untrained: all are wrong, so all are told
    outcome, weighed = said_by(measure, [got[one.prompt] for one in measure.examples]).run(compress, silent)
    assert outcome.score == 1
    assert (weighed.kept == 1) == (compress is None)


@pytest.mark.parametrize("cache", ["dual", "prefix"])
def test_diffusion_models_drop_in_their_block_caches(diffusion: Model, cache: str) -> None:
    measure = laid_out(diffusion, cache=cache, length=2)
    own = task_settings(diffusion, find_task("passkey"))
    assert isinstance(own, Denoising)
    settings = replace(own, cache=cache, block_length=2)
    assert measure.decoding == settings and measure.when == "block"
    score = evaluate(
        diffusion, "passkey", n=5, seed=2, room=36, batch_size=3, settings=settings, compression=HALF
    )  # fmt: skip
    got = {one.prompt: one.got for one in score.wrong}
    outcome, weighed = said_by(measure, [got[one.prompt] for one in measure.examples]).run(HALF, silent)
    assert outcome.score == 1
    kept = there = 0
    for one in measure.asked:
        for block in (0, 1):
            context = len(one.whole) + 2 * block + (2 * (1 - block) if cache == "dual" else 0)
            kept, there = kept + ceil(context / 2), there + context
    assert weighed.kept == pytest.approx(kept / there)
    assert any("first pass" in note for note in measure.notes)


def test_a_block_length_holds_where_a_family_has_no_blocks_too(tiny: Callable[[str], Model]) -> None:
    dream = tiny("dream-tiny")
    for length in (None, 2):
        found = _settings(dream, find_task("passkey"), Blocks(length=length))
        assert isinstance(found, Denoising) and (found.block_length, found.cache) == (length, "dual")


def test_less_is_held_the_more_is_dropped(twin: Model, diffusion: Model) -> None:
    for model in (twin, diffusion):
        measure = laid_out(model)
        held = [
            measure.run(one, silent)[1].cache_bytes
            for one in (None, Compress("key-norm", 0.5), Compress("key-norm", 0.1))
        ]
        assert held[0] > 1.7 * held[1] > 2 * held[2] > 0


def test_layers_that_are_skipped_count(twin: Model) -> None:
    measure = laid_out(twin)
    lengths = [len(one.context) for one in measure.asked]
    _, weighed = measure.run(Compress("key-norm", SkipLayers(0.2, (0,))), silent)
    kept = sum(length + ceil(length / 5) for length in lengths)
    assert weighed.kept == pytest.approx(kept / (2 * sum(lengths)))


def test_a_scorer_that_needs_attention_has_it(twin: Model) -> None:
    outcome, weighed = laid_out(twin).run(Compress("received-attention", 0.5), silent)
    assert outcome.n == 5 and 0.5 <= weighed.kept < 0.6


def test_the_observer_hears_of_every_batch(twin: Model) -> None:
    told: list[int] = []
    laid_out(twin).run(HALF, told.append)
    assert told == [3, 5]


@pytest.mark.parametrize(
    ("task", "when", "kind", "said"),
    [
        ("copy", "context", "twin-ar", "no context before its question"),
        ("copy", None, "twin-ar", "no context before its question"),
        ("passkey", "context", "twin-dlm", "sees in both directions: --when context is not for it, use block"),
        ("passkey", "block", "twin-ar", "has no block cache: --when block is not for it, use context, prompt, decode"),
        ("passkey", "never", "twin-ar", "--when must be one of"),
        ("chess", None, "twin-ar", "unknown task 'chess'; choose one of perplexity, needle, "),
        ("perplexity", "prompt", "twin-ar", "perplexity asks none"),
        ("perplexity", None, "twin-dlm", "sees in both directions"),
    ],
)
def test_what_can_not_be_measured_is_refused(
    twin: Model, diffusion: Model, task: str, when: str | None, kind: str, said: str
) -> None:
    model = {"twin-ar": twin, "twin-dlm": diffusion}[kind]
    with pytest.raises(UserError) as caught:
        find_measure(task, Choice(examples=Examples(n=2, room=36), when=when))(model)
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_a_refusal_names_the_example(twin: Model) -> None:
    protected = Compress("key-norm", 3)
    check: Callable[[Compress | None], None] = laid_out(twin).check
    check(protected)
    with pytest.raises(UserError, match=r"no layer 7 to skip"):
        check(Compress("key-norm", SkipLayers(0.5, (7,))))


def test_bytes_of_an_example_do_not_hang_on_who_shares_its_batch(twin: Model, diffusion: Model) -> None:
    for model in (twin, diffusion):
        for compress in (None, Compress("random", 0.5)):
            alone, together = (replace(laid_out(model), batch_size=size).run(compress, silent)[1] for size in (1, 5))
            # The few bytes that a row has whatever its length shrink with the share of its slots that is filled.
            assert together.cache_bytes == pytest.approx(alone.cache_bytes, rel=1e-3)
            assert together.kept == alone.kept
