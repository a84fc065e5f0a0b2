"""Run a model on a task: generate an answer to every example and count the right ones.

    score = evaluate(model, "arithmetic-1", n=1000)
    print(score.score, score.low, score.high, score.wrong[0])

Everything that can be refused is refused by `plan_evaluation`, before the first pass. Costs one forward pass for each
token of the task's `gen_length` and each batch.

Misleads: answers are generated greedily and read up to the model's end of text, so a model that talks on after a right
answer is wrong. The interval is about the choice of examples, not about wording, decoding or training.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from sinkscope.decoding import Decoding, Denoising, Run, Settings, default_settings
from sinkscope.decoding.generation import warn_beyond_training
from sinkscope.decoding.protocols import Compression, Intervention, MaskingStats, added
from sinkscope.decoding.texts import decode_text
from sinkscope.errors import UserError
from sinkscope.evaluation.base import ROOM, Example, Task, check_count
from sinkscope.evaluation.inputs import padded_batches
from sinkscope.evaluation.tasks import examples, find_task
from sinkscope.families import Model
from sinkscope.intervals import wilson_interval

Observer = Callable[[int], None]
"""Called after every batch with the number of examples answered so far."""
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
    room: int
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
class Plan:
    """An evaluation that was checked and can be run; made by `plan_evaluation`."""

    model: Model
    task: Task
    examples: tuple[Example, ...]
    encoded: tuple[list[int], ...]
    """Token ids of the prompts."""
    settings: Settings
    seed: int
    room: int
    batch_size: int
    intervention: Intervention | None
    compression: Compression | None

    def run(self, observer: Observer | None = None) -> Score:
        """Generate all answers and count the right ones."""
        got = [""] * len(self.examples)
        removed: MaskingStats | None = None
        answered, start = 0, time.perf_counter()
        for batch in padded_batches(self.model, [len(tokens) for tokens in self.encoded], self.batch_size):
            texts, gone = self._answers([self.encoded[number] for number in batch])
            for number, text in zip(batch, texts, strict=True):
                got[number] = text
            removed = added(removed, gone)
            answered += len(batch)
            if observer is not None:
                observer(answered)
        pairs = list(zip(self.examples, got, strict=True))
        right = tuple(self.task.is_right(example.answer, said) for example, said in pairs)
        wrong = [
            Wrong(example.prompt, example.answer, said)
            for (example, said), good in zip(pairs, right, strict=True)
            if not good
        ]
        return Score(
            task=self.task.name,
            model=self.model.name,
            n=len(self.examples),
            correct=sum(right),
            seed=self.seed,
            room=self.room,
            settings=self.settings,
            seconds=time.perf_counter() - start,
            right=right,
            intervention=None if self.intervention is None else self.intervention.to_dict(),
            removed=None if removed is None else removed.to_dict(),
            compression=None if self.compression is None else self.compression.to_dict(),
            wrong=tuple(wrong[:WRONG_KEPT]),
        )

    def _answers(self, prompts: list[list[int]]) -> tuple[list[str], MaskingStats | None]:
        """What is generated after each prompt, up to its first end of text; a diffusion model fills the rest too.

        And what the intervention removed meanwhile, over all prompts.
        """
        removed: MaskingStats | None = None
        run = Run(self.model, self.settings, self.intervention, self.compression)
        for step in run.steps(prompts):
            removed = step.add_to(removed)
        start = len(run.prefix) + max(map(len, prompts))
        texts = answer_texts(self.model, step.canvas[:, start:])
        return texts, None if removed is None else removed.whole()


def answer_texts(model: Model, generated: torch.Tensor) -> list[str]:
    """Each row of what was generated, (batch, position), up to its first end of text."""
    return [decode_text(model, row) for row in generated.tolist()]


def plan_evaluation(
    model: Model,
    task: str | Task,
    *,
    n: int = 1000,
    seed: int = 0,
    room: int = ROOM,
    batch_size: int = 64,
    settings: Settings | None = None,
    intervention: Intervention | None = None,
    compression: Compression | None = None,
) -> Plan:
    """Draw the examples and check everything, without a forward pass. Parameters as for `evaluate`.

    Raises `UserError` for an unknown task, a number below 1, more examples than there are, a model without a tokenizer,
    settings of the other kind of model, and answers that do not fit the context. Warns with `TrainedLengthWarning`
    where texts grow longer than those the model was trained on.
    """
    task = find_task(task) if isinstance(task, str) else task
    check_count("batch_size", batch_size)
    if model.tokenizer is None:
        raise UserError(f"{model.name} has no tokenizer, and the task {task.name} is text; add one to its folder")
    drawn = examples(task, n, seed, room)
    run = Run(model, settings or task_settings(model, task), intervention, compression)
    encoded = run.encode([example.prompt for example in drawn])
    run.check(encoded)
    warn_beyond_training(model, [[*run.prefix, *max(encoded, key=len)]], run.settings)
    return Plan(
        model=model,
        task=task,
        examples=tuple(drawn),
        encoded=tuple(encoded),
        settings=run.settings,
        seed=seed,
        room=room,
        batch_size=batch_size,
        intervention=intervention,
        compression=compression,
    )


def evaluate(
    model: Model,
    task: str | Task,
    *,
    n: int = 1000,
    seed: int = 0,
    room: int = ROOM,
    batch_size: int = 64,
    settings: Settings | None = None,
    intervention: Intervention | None = None,
    compression: Compression | None = None,
    observer: Observer | None = None,
) -> Score:
    """The share of `n` held-out examples of a task that a model answers exactly, with its 95 % interval.

    seed: of the examples; the noise of generation is in `settings`. room: tokens that an example's text may take.
    batch_size: prompts run together; answers agree between batch sizes up to near ties. settings: `task_settings` if
        left out. intervention: what is cut from attention meanwhile. compression: which keys the cache drops, see
        `sinkscope.compression`; a block cache is asked for in `settings`. observer: called after every batch with the
        number of examples answered.

    Raises `UserError` before any work, see `plan_evaluation`.
    """
    plan = plan_evaluation(
        model,
        task,
        n=n,
        seed=seed,
        room=room,
        batch_size=batch_size,
        settings=settings,
        intervention=intervention,
        compression=compression,
    )
    return plan.run(observer)


def task_settings(model: Model, task: Task) -> Settings:
    """Greedy decoding in the model's own way, with a canvas as long as the task's answers may be.

    A diffusion model keeps its family's schedule and confidence and commits one position a step, in blocks of 4 where
    its family has blocks.
    """
    own = default_settings(model)
    if isinstance(own, Decoding):
        return Decoding(max_new_tokens=task.gen_length)
    block = _BLOCK if task.gen_length % _BLOCK == 0 else task.gen_length
    return Denoising(
        gen_length=task.gen_length,
        block_length=None if own.block_length is None else block,
        steps=None,
        schedule=own.schedule,
        confidence=own.confidence,
    )
