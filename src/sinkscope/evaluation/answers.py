"""Exact answers: run a model on a task, under any condition, and count the right ones.

    score = evaluate(model, "arithmetic-1", n=1000)
    print(score.score, score.low, score.high, score.wrong[0])

Everything that can be refused is refused before the first pass. Costs one forward pass for each token of the task's
`gen_length` and each batch.

Misleads: answers are generated greedily and read up to the model's end of text, so a model that talks on after a right
answer is wrong. The interval is about the choice of examples, not about wording, decoding or training.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from typing import Any

import numpy as np

from sinkscope.decoding import Decoding, Denoising, Renoising, default_settings, encode_prompts
from sinkscope.decoding.generation import warn_beyond_training
from sinkscope.decoding.protocols import Compression, MaskingStats, added, prefix_of
from sinkscope.decoding.settings import Settings
from sinkscope.decoding.texts import decode_text
from sinkscope.errors import UserError
from sinkscope.evaluation.cache_stats import Meter
from sinkscope.evaluation.conditions import POINTS, KeysCondition
from sinkscope.evaluation.eviction_points import EVICTION_POINTS, Answering, Question, Unmetered, answering
from sinkscope.evaluation.inputs import Observer, check_naming, example_name
from sinkscope.evaluation.measuring import KeysMeasure, MeasureOptions
from sinkscope.evaluation.tasks import MAX_EXAMPLE_TOKENS, Example, Task, check_count, digest, examples, find_task
from sinkscope.families import Model
from sinkscope.grids import Outcome
from sinkscope.intervals import wilson_interval
from sinkscope.interventions import MaskSinks

WRONG_KEPT = 10
_BLOCK = 4


@dataclass(frozen=True)
class Wrong:
    """A wrong answer."""

    prompt: str
    expected: str
    got: str


@dataclass(frozen=True, kw_only=True)
class Score:
    """How many examples of a task a model got right, and everything needed to ask it the same again."""

    task: str
    model: str
    n: int
    correct: int
    seed: int
    """Of the examples."""
    max_example_tokens: int
    """Tokens that the examples' texts could take."""
    settings: Settings
    seconds: float
    """Spent on generating."""
    right: tuple[bool, ...]
    """Whether each answer is right, in the order of the examples."""
    intervention: dict[str, Any] | None
    """What was cut from attention meanwhile."""
    removed: dict[str, float | None] | None
    """What that took away, see `decoding.protocols.MaskingStats.to_dict`."""
    compression: dict[str, Any] | None
    """Which keys the cache dropped meanwhile."""
    wrong: tuple[Wrong, ...]
    """The first few wrong answers, in the order of the examples."""

    @property
    def score(self) -> float:
        """Share of right answers."""
        return self.correct / self.n

    @property
    def low(self) -> float:
        """Lower end of the score's 95 % interval."""
        return wilson_interval(self.correct, self.n)[0]

    @property
    def high(self) -> float:
        """Upper end of the score's 95 % interval."""
        return wilson_interval(self.correct, self.n)[1]

    def to_dict(self) -> dict[str, Any]:
        """As JSON: score and interval included, single answers left out."""
        measured = {"score": self.score, "low": self.low, "high": self.high}
        stated = {name: value for name, value in asdict(self).items() if name != "right"}
        return {**stated, **measured}


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Examples of a task that were checked and can be answered; made by `plan_evaluation`."""

    task: Task
    examples: tuple[Example, ...]
    questions: tuple[Question, ...]
    answering: Answering
    seed: int
    max_example_tokens: int
    batch_size: int

    def run(self, observer: Observer | None = None) -> Score:
        """Generate all answers and count the right ones."""
        start, how = time.perf_counter(), self.answering
        got, removed = answer_all(how, self.questions, self.batch_size, observer)
        pairs = list(zip(self.examples, got, strict=True))
        right = tuple(self.task.is_right(example.answer, said) == 1 for example, said in pairs)
        wrong = [
            Wrong(example.prompt, example.answer, said)
            for (example, said), good in zip(pairs, right, strict=True)
            if not good
        ]
        return Score(
            task=self.task.name,
            model=how.model.name,
            n=len(self.examples),
            correct=sum(right),
            seed=self.seed,
            max_example_tokens=self.max_example_tokens,
            settings=how.settings,
            seconds=time.perf_counter() - start,
            right=right,
            intervention=None if how.intervention is None else how.intervention.to_dict(),
            removed=None if removed is None else removed.to_dict(),
            compression=None if how.compression is None else how.compression.to_dict(),
            wrong=tuple(wrong[:WRONG_KEPT]),
        )


def plan_evaluation(
    model: Model,
    task: str | Task,
    *,
    n: int = 1000,
    seed: int = 0,
    max_example_tokens: int = MAX_EXAMPLE_TOKENS,
    batch_size: int = 64,
    settings: Settings | None = None,
    intervention: MaskSinks | None = None,
    compression: Compression | None = None,
) -> Evaluation:
    """Draw the examples and check everything, without a forward pass. Parameters as for `evaluate`.

    Raises `UserError` for an unknown task, a number below 1, more examples than there are, a model without a tokenizer,
    settings of the other kind of model, and answers that do not fit the context. Warns with `TrainedLengthWarning`
    where texts grow longer than those the model was trained on.
    """
    task = find_task(task) if isinstance(task, str) else task
    check_count("batch_size", batch_size)
    _check_asked(model, task)
    drawn = examples(task, n, seed, max_example_tokens)
    settings = settings or task_settings(model, task)
    prefix = prefix_of(compression)
    encoded = encode_prompts(model, [example.prompt for example in drawn], continuing=bool(prefix))
    plan = Evaluation(
        task=task,
        examples=tuple(drawn),
        questions=tuple(Question(context=[], asked=tokens) for tokens in encoded),
        answering=Unmetered(model=model, settings=settings, intervention=intervention, compression=compression),
        seed=seed,
        max_example_tokens=max_example_tokens,
        batch_size=batch_size,
    )
    plan.answering.check(plan.questions)
    warn_beyond_training(model, [[*prefix, *max(encoded, key=len)]], settings)
    return plan


def evaluate(
    model: Model,
    task: str | Task,
    *,
    n: int = 1000,
    seed: int = 0,
    max_example_tokens: int = MAX_EXAMPLE_TOKENS,
    batch_size: int = 64,
    settings: Settings | None = None,
    intervention: MaskSinks | None = None,
    compression: Compression | None = None,
    observer: Observer | None = None,
) -> Score:
    """The share of `n` held-out examples of a task that a model answers exactly, with its 95 % interval.

    seed: of the examples; the noise of generation is in `settings`. max_example_tokens: that an example's text may
    take. batch_size: prompts run together; answers agree between batch sizes up to near ties. settings: `task_settings`
        if left out. intervention: what is cut from attention meanwhile. compression: which keys the cache drops, see
        `sinkscope.compression`; a block cache is asked for in `settings`. observer: called after every batch with the
        number of examples answered.

    Raises `UserError` before any work, see `plan_evaluation`.
    """
    plan = plan_evaluation(
        model,
        task,
        n=n,
        seed=seed,
        max_example_tokens=max_example_tokens,
        batch_size=batch_size,
        settings=settings,
        intervention=intervention,
        compression=compression,
    )
    return plan.run(observer)


def answer_all(
    how: Answering, questions: Sequence[Question], batch_size: int, observer: Observer | None
) -> tuple[list[str], MaskingStats | None]:
    """What is answered to each question, up to its first end of text; and what an intervention removed, (1,)."""
    got, done = [""] * len(questions), 0
    removed: MaskingStats | None = None
    for batch in how.batches(questions, batch_size):
        found = how.answers([questions[number] for number in batch])
        for number, row in zip(batch, found.generated.tolist(), strict=True):
            got[number] = decode_text(how.model, row)
        removed = added(removed, found.removed)
        done += len(batch)
        if observer is not None:
            observer(done)
    return got, removed


def task_settings(model: Model, task: Task) -> Settings:
    """Greedy decoding in the model's own way, with a canvas as long as the task's answers may be.

    A diffusion model keeps its family's schedule and confidence and commits one position a step, in blocks of 4 where
    its family has blocks.
    """
    own = default_settings(model)
    if isinstance(own, Decoding):
        return Decoding(max_new_tokens=task.gen_length)
    if isinstance(own, Renoising):
        return replace(own, gen_length=task.gen_length)
    block = _BLOCK if task.gen_length % _BLOCK == 0 else task.gen_length
    kept: dict[str, Any] = {name: getattr(own, name) for name in ("schedule", "confidence", "cache", "stop")}
    blocks = None if own.block_length is None else block
    return Denoising(gen_length=task.gen_length, block_length=blocks, steps=None, **kept)


@dataclass(frozen=True, kw_only=True)
class ExactAnswers(KeysMeasure):
    """The share of examples that are answered exactly, one number, right or wrong, an example."""

    kind: Task
    examples: tuple[Example, ...]
    questions: tuple[Question, ...]
    decoding: Settings
    drawn: Mapping[str, Any]
    """How the examples were drawn."""

    better = "high"

    @property
    def unit(self) -> str:
        """In words."""
        return "share of what was asked" if self.kind.in_parts else "share of right answers"

    @property
    def task(self) -> str:
        """Of the task."""
        return self.kind.name

    @property
    def n(self) -> int:
        """Number of examples."""
        return len(self.examples)

    def check(self, condition: KeysCondition) -> None:
        """Before any work."""
        how = answering(self.model, self.decoding, condition, Meter())

        def check(questions: Sequence[Question]) -> None:
            self._check_room(questions)
            how.check(questions)

        check_naming(check, self.questions, lambda number: example_name(number, self.examples[number].prompt))

    def score(
        self, condition: KeysCondition, meter: Meter, observer: Callable[[int], None]
    ) -> tuple[Outcome, MaskingStats | None]:
        """Generate all answers."""
        how = answering(self.model, self.decoding, condition, meter)
        got, removed = answer_all(how, self.questions, self.batch_size, observer)
        right = np.array(
            [self.kind.is_right(one.answer, said) for one, said in zip(self.examples, got, strict=True)], np.float64
        )
        return Outcome(right, np.ones_like(right), exact=not self.kind.in_parts), removed

    def settings(self) -> dict[str, Any]:
        """Examples and decoding."""
        return {"task": self.task, "n": self.n, **self.drawn, "decoding": vars(self.decoding)}

    def _check_room(self, questions: Sequence[Question]) -> None:
        """Name the option that makes examples shorter."""
        context, longest = self.model.family.max_length, max(len(one.prompt) for one in questions)
        answer = self.decoding.new_tokens
        if longest + answer > context:
            advice = f"name smaller {'--lengths' if 'lengths' in self.drawn else '--max-example-tokens'}"
            if self.kind.size is not None:
                advice = "shorten it, or write a smaller gen_length in the first line of its file"
            raise UserError(
                f"an example of {longest} tokens and its answer of {answer} make {longest + answer}, the context is "
                f"{context}; {advice}"
            )


def make_answers(model: Model, task: Task, options: MeasureOptions) -> ExactAnswers:
    """A task's examples as a measure."""
    asked = options.examples
    n = asked.n if task.size is None else min(asked.n, task.size)
    drawn = examples(task, n, asked.seed, asked.max_example_tokens)
    how = {"seed": asked.seed, "max_example_tokens": asked.max_example_tokens, "questions": digest(task, drawn)}
    few = () if n == asked.n else (f"{task.name} has {n} questions, all are taken where {asked.n} were asked for",)
    return lay_out_answers(model, task, drawn, options, drawn=how, notes=few)


def lay_out_answers(
    model: Model,
    task: Task,
    examples: Sequence[Example],
    options: MeasureOptions,
    *,
    drawn: Mapping[str, Any],
    notes: Sequence[str] = (),
) -> ExactAnswers:
    """Encode these examples of a task and check everything. drawn: how they were drawn, as JSON.

    Raises `UserError` for a model of another kind than `options.when`, or one without a tokenizer; for examples without
    a context where it is to be compressed alone; and for what does not fit the model.
    """
    point = options.point(model, POINTS)
    _check_asked(model, task)
    questions = tuple(_questions(model, examples))
    if point == "context":
        check_has_context(task.name, [one.context for one in questions])
    caution = None if point is None else EVICTION_POINTS[point].caution
    laid = ExactAnswers(
        model=model,
        point=point,
        kind=task,
        examples=tuple(examples),
        questions=questions,
        decoding=_decoding(model, task, options),
        batch_size=options.examples.batch_size,
        drawn=drawn,
        notes=tuple(filter(None, (*notes, caution))),
    )
    laid.check(KeysCondition(point=point))
    warn_beyond_training(model, [max((one.prompt for one in laid.questions), key=len)], laid.decoding)
    return laid


def check_has_context(task: str, contexts: Sequence[Sized]) -> None:
    """Raise `UserError` where a context, a text or its tokens, is empty: an example that is all question."""
    without = [number for number, one in enumerate(contexts) if not len(one)]
    if without:
        which = "" if len(without) == len(contexts) else f", example {without[0]} for one,"
        raise UserError(
            f"the task {task}{which} has no context before its question that could be compressed alone: compress the "
            "whole prompt (--when prompt), or take another task"
        )


def _check_asked(model: Model, task: Task) -> None:
    if model.tokenizer is None:
        raise UserError(f"{model.name} has no tokenizer, and the task {task.name} is text; add one to its folder")
    task.check(model)


def _decoding(model: Model, task: Task, options: MeasureOptions) -> Settings:
    own, blocks = task_settings(model, task), options.blocks
    if not isinstance(own, Denoising) or not options.cached:
        return own
    return replace(own, cache=blocks.cache, block_length=own.block_length if blocks.length is None else blocks.length)


def _questions(model: Model, examples: Sequence[Example]) -> list[Question]:
    """Token ids of the prompts, cut where the tokens of their contexts end: a token that holds the end of a context and
    the beginning of a question is the question's."""
    whole = encode_prompts(model, [one.prompt for one in examples])
    contexts = [encode_prompts(model, one.context)[0] if one.context else [] for one in examples]
    found = []
    for tokens, context in zip(whole, contexts, strict=True):
        pairs = zip(tokens[:-1], context, strict=False)  # the question has a token at least
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        found.append(Question(context=tokens[:shared], asked=tokens[shared:]))
    return found
