"""Answers to `generate_until` requests: sorted by what they ask for, checked, run in batches.

Costs one forward pass for each step and batch. An autoregressive batch ends when each of its answers has; what an
intervention takes from an answer after its end is not counted, so that it does not depend on the batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sinkscope.decoding import Denoising, Run
from sinkscope.decoding.generation import warn_beyond_training
from sinkscope.decoding.protocols import MaskingStats, added
from sinkscope.decoding.sampling import prompt_seeds
from sinkscope.decoding.settings import Settings
from sinkscope.decoding.texts import decode_text
from sinkscope.evaluation.compressed.watching import watched_for
from sinkscope.evaluation.harness.arguments import Arguments
from sinkscope.evaluation.harness.encoding import Encoder
from sinkscope.evaluation.harness.records import TaskRun, stated
from sinkscope.evaluation.harness.settings import read_wish, settings_for
from sinkscope.evaluation.harness.stopping import Stops
from sinkscope.evaluation.inputs import padded_batches
from sinkscope.families import Model

Tell = Callable[[int, str], None]
"""Called with a request's number and its answer as soon as that is there."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """One request."""

    task: str
    text: str
    asked: Mapping[str, Any]
    """Its `generation_kwargs`."""


@dataclass(frozen=True)
class _Group:
    """What questions that can be answered together have in common."""

    task: str
    settings: Settings
    until: tuple[str, ...]


def answer(model: Model, arguments: Arguments, questions: Sequence[Question], tell: Tell) -> list[TaskRun]:
    """Answer all questions. Raises `UserError` before the first pass for what can't be answered."""
    encoder = Encoder(model)
    prompts = [encoder.prompt(one.text, f"prompt {number} of {one.task}") for number, one in enumerate(questions)]
    seeds = prompt_seeds(prompts, arguments.seed)
    groups: dict[_Group, list[int]] = {}
    for number, one in enumerate(questions):
        groups.setdefault(_group(model, arguments, one), []).append(number)
    for group, numbers in groups.items():
        asked = [prompts[number] for number in numbers]
        Run(model, group.settings, arguments.masking, arguments.compression).check(asked)
        warn_beyond_training(model, asked, group.settings)
    runs = []
    with watched_for(model, arguments.compression):
        for group, numbers in groups.items():
            some = _Batches(model, arguments, group)
            runs.append(some.run({number: (prompts[number], seeds[number]) for number in numbers}, tell))
    return runs


def _group(model: Model, arguments: Arguments, question: Question) -> _Group:
    wish = read_wish(question.asked, question.task)
    return _Group(question.task, settings_for(model, arguments.decoding, wish, arguments.seed), wish.until)


class _Batches:
    """Answers one group."""

    def __init__(self, model: Model, arguments: Arguments, group: _Group) -> None:
        self._model = model
        self._arguments = arguments
        self._group = group
        self._stops = Stops(model, group.until)

    def run(self, prompts: Mapping[int, tuple[list[int], int]], tell: Tell) -> TaskRun:
        """prompts: token ids and seed of each question by its number."""
        start, passes = time.perf_counter(), 0
        removed: MaskingStats | None = None
        numbers = list(prompts)
        lengths = [len(prompts[number][0]) for number in numbers]
        for batch in padded_batches(self._model, lengths, self._arguments.batch_size):
            chosen = [numbers[place] for place in batch]
            texts, made, gone = self._answer([prompts[number] for number in chosen])
            for number, text in zip(chosen, texts, strict=True):
                tell(number, text)
            passes, removed = passes + made, added(removed, gone)
        return TaskRun(
            task=self._group.task,
            kind="generate_until",
            requests=len(numbers),
            forward_passes=passes,
            seconds=time.perf_counter() - start,
            settings={**stated(self._group.settings), "until": self._group.until},
            removed=removed,
        )

    def _answer(self, prompts: Sequence[tuple[list[int], int]]) -> tuple[list[str], int, MaskingStats | None]:
        """Texts, forward passes made, and what was removed from all rows together."""
        encoded, seeds = [tokens for tokens, _ in prompts], [seed for _, seed in prompts]
        settings, removed, passes = self._group.settings, None, 0
        fills = isinstance(settings, Denoising)
        start = 0 if isinstance(settings, Denoising) and settings.gen_length == 0 else max(map(len, encoded))
        stopped = torch.zeros(len(encoded), dtype=torch.bool)
        run = Run(self._model, settings, self._arguments.masking, self._arguments.compression)
        for step in run.steps(encoded, seeds):
            passes += 1
            going = step.takes_part.cpu() & ~stopped
            if step.removed is not None:
                removed = added(removed, step.removed.of(going.to(step.canvas.device)))
            if not fills:
                for row in going.nonzero().flatten().tolist():
                    stopped[row] = self._stops.reached(step.canvas[row, start:].tolist())
                if bool(stopped.all()):
                    break
        texts = [self._text(row, start) for row in step.canvas.tolist()]
        return texts, passes, None if removed is None else removed.whole()

    def _text(self, row: Sequence[int], start: int) -> str:
        """A filled prompt is told whole, anything else up to its end."""
        if start == 0:
            return decode_text(self._model, row, until_end=False)
        return self._stops.text(row[start:])
