"""Exact answers with keys dropped: one number, right or wrong, an example."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import numpy as np

from sinkscope.compression import Compress
from sinkscope.decoding import Decoding, encode_prompts
from sinkscope.decoding.generation import warn_beyond_training
from sinkscope.decoding.settings import Settings
from sinkscope.errors import UserError
from sinkscope.evaluation.answers import Scorer
from sinkscope.evaluation.base import Example, Task
from sinkscope.evaluation.compressed.base import Weighed
from sinkscope.evaluation.compressed.metering import Meter
from sinkscope.evaluation.compressed.watching import watched_for
from sinkscope.evaluation.compressed.ways import Asked, Way, way_for
from sinkscope.evaluation.grids.examples import Examples, check_naming, example_name
from sinkscope.evaluation.grids.outcomes import Outcome
from sinkscope.evaluation.running import answer_texts, task_settings
from sinkscope.evaluation.tasks import examples as draw_examples
from sinkscope.families import Model


@dataclass(frozen=True, kw_only=True)
class Blocks:
    """How a diffusion model's answers are cached. length: of a block; None leaves it to the task."""

    cache: str = "dual"
    length: int | None = None


@dataclass(frozen=True, kw_only=True)
class Questions:
    """The share of examples that are answered exactly."""

    model: Model
    task: str
    examples: tuple[Example, ...]
    asked: tuple[Asked, ...]
    is_right: Scorer
    way: Way
    decoding: Settings
    batch_size: int
    drawn: Mapping[str, Any]
    """How the examples were drawn."""
    better: str = "high"
    unit: str = "share of right answers"
    told: tuple[str, ...] = ()
    """What to know about the examples"""

    @property
    def when(self) -> str:
        """When keys are dropped."""
        return self.way.name

    @property
    def n(self) -> int:
        """Number of examples."""
        return len(self.examples)

    @property
    def notes(self) -> tuple[str, ...]:
        """Of the way, and of the examples."""
        return (*self.told, *(() if self.way.caution is None else (self.way.caution,)))

    def check(self, compress: Compress | None) -> None:
        """Before any work."""

        def check(asked: Sequence[Asked]) -> None:
            self._check_room(asked)
            self.way.check(self.model, asked, self.decoding, compress)

        check_naming(check, self.asked, lambda number: example_name(number, self.examples[number].prompt))

    def run(self, compress: Compress | None, observer: Callable[[int], None]) -> tuple[Outcome, Weighed]:
        """Generate all answers."""
        right, meter, done = np.zeros(self.n), Meter(), 0
        with watched_for(self.model, compress):
            for batch in self.way.batches(self.model, self.asked, self.batch_size):
                asked = [self.asked[number] for number in batch]
                generated = self.way.answers(self.model, asked, self.decoding, compress, meter)
                for number, text in zip(batch, answer_texts(self.model, generated), strict=True):
                    right[number] = self.is_right(self.examples[number].answer, text)
                done += len(batch)
                observer(done)
        return Outcome(right, np.ones_like(right), exact=True), meter.weighed()

    def settings(self) -> dict[str, Any]:
        """Examples and decoding."""
        stated = {"task": self.task, "when": self.when, "n": self.n, **self.drawn}
        return {**stated, "decoding": vars(self.decoding)}

    def _check_room(self, asked: Sequence[Asked]) -> None:
        """Name the option that makes examples shorter."""
        own, context = self.decoding, self.model.family.max_length
        answer = own.max_new_tokens if isinstance(own, Decoding) else own.gen_length
        longest = max(len(one.whole) for one in asked)
        if longest + answer > context:
            raise UserError(
                f"an example of {longest} tokens and its answer of {answer} make {longest + answer}, the context is "
                f"{context}; name smaller {'--lengths' if 'lengths' in self.drawn else '--room'}"
            )


def make_questions(model: Model, examples: Examples, task: Task, when: str | None, blocks: Blocks) -> Questions:
    """A task's examples as a measure."""
    drawn = draw_examples(task, examples.n, examples.seed, examples.room)
    how = {"seed": examples.seed, "room": examples.room}
    return lay_out_questions(model, task, drawn, when, blocks, batch_size=examples.batch_size, drawn=how)


def lay_out_questions(
    model: Model,
    task: Task,
    examples: Sequence[Example],
    when: str | None,
    blocks: Blocks,
    *,
    batch_size: int,
    drawn: Mapping[str, Any],
) -> Questions:
    """Encode these examples of a task and check everything. drawn: how they were drawn, as JSON.

    Raises `UserError` for a model of another kind than `when`, or one without a tokenizer; for examples without a
    context where it is to be compressed alone; and for what does not fit the model.
    """
    way = way_for(model, when)
    if model.tokenizer is None:
        raise UserError(f"{model.name} has no tokenizer, and the task {task.name} is text; add one to its folder")
    if way.name == "context":
        check_has_context(task.name, examples)
    asked = _asked(model, examples)
    laid = Questions(
        model=model,
        task=task.name,
        examples=tuple(examples),
        asked=tuple(asked),
        is_right=task.is_right,
        way=way,
        decoding=_settings(model, task, blocks),
        batch_size=batch_size,
        drawn=drawn,
    )
    laid.check(None)
    warn_beyond_training(model, [max((one.whole for one in asked), key=len)], laid.decoding)
    return laid


def check_has_context(task: str, examples: Sequence[Example]) -> None:
    """Raise `UserError` for examples that are all question."""
    if not all(one.context for one in examples):
        raise UserError(
            f"the task {task} has no context before its question that could be compressed alone: compress the whole "
            "prompt (--when prompt), or take another task"
        )


def _settings(model: Model, task: Task, blocks: Blocks) -> Settings:
    own = task_settings(model, task)
    if isinstance(own, Decoding):
        return own
    return replace(own, cache=blocks.cache, block_length=own.block_length if blocks.length is None else blocks.length)


def _asked(model: Model, examples: Sequence[Example]) -> list[Asked]:
    """Token ids of the prompts, cut where the tokens of their contexts end: a token that holds the end of a context and
    the beginning of a question is the question's."""
    whole = encode_prompts(model, [one.prompt for one in examples])
    contexts = [encode_prompts(model, one.context)[0] if one.context else [] for one in examples]
    found = []
    for tokens, context in zip(whole, contexts, strict=True):
        pairs = zip(tokens[:-1], context, strict=False)  # the question has a token at least
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        found.append(Asked(context=tokens[:shared], question=tokens[shared:]))
    return found
