"""Likelihoods of right answers as a measure, under any condition: nats a token.

Exact for an autoregressive model. For one with masks the mean of Monte Carlo draws, a bound from above, see
`likelihood`. Misleads: the answers are encoded as what goes on after their prompts, with a space before them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from sinkscope.decoding import encode_prompts
from sinkscope.decoding.protocols import MaskingStats, added
from sinkscope.decoding.sampling import prompt_seeds
from sinkscope.evaluation.cache_stats import Meter
from sinkscope.evaluation.conditions import KeysCondition
from sinkscope.evaluation.hidden import HiddenText, check_hidden, hidden_batches, read_hidden
from sinkscope.evaluation.inputs import check_lengths, warn_beyond_training
from sinkscope.evaluation.likelihood import draw_masks
from sinkscope.evaluation.measuring import MeasureOptions
from sinkscope.evaluation.passages import Passage, check_passages, token_scores
from sinkscope.evaluation.tasks import Task, examples
from sinkscope.evaluation.text_measures import POINTS, PassageNats
from sinkscope.families import Model
from sinkscope.grids import Outcome

LIKELIHOOD = "likelihood-"
MC_NUM = 16
"""Draws of a bound."""


@dataclass(frozen=True, kw_only=True)
class AnswerNats(PassageNats):
    """Mean negative log-likelihood of a token of the right answer, exact, of an autoregressive model.

    A passage is the prompt and the right answer of an example.
    """

    kind: Task
    drawn: dict[str, Any]

    @property
    def task(self) -> str:
        """With that of the questions."""
        return f"{LIKELIHOOD}{self.kind.name}"

    def check(self, condition: KeysCondition) -> None:
        """Before any work."""
        check_passages(self.model, self.passages, self.batch_size, condition)

    def settings(self) -> dict[str, Any]:
        """Examples."""
        return {"task": self.task, "n": self.n, **self.drawn, "questions": self.digest()}


@dataclass(frozen=True, kw_only=True)
class BoundedAnswerNats(AnswerNats):
    """The same for a model with masks: the mean of Monte Carlo draws, a bound from above (arXiv 2502.09992, eq. 6)."""

    draws: tuple[tuple[HiddenText, ...], ...]
    """Of each example."""

    def check(self, condition: KeysCondition) -> None:
        """Before any work."""
        check_lengths(self.model, [one.length for one in self.passages], "prompt with answer")
        check_hidden(self.model, [one for some in self.draws for one in some], condition)

    def score(
        self, condition: KeysCondition, meter: Meter, observer: Callable[[int], None]
    ) -> tuple[Outcome, MaskingStats | None]:
        """Score all draws of all answers."""
        texts = [(number, one) for number, some in enumerate(self.draws) for one in some]
        waiting, sums = [len(some) for some in self.draws], np.zeros(self.n)
        counts = np.array([len(one.scored) for one in self.passages], np.float64)
        hidden, removed = [one for _, one in texts], None
        for batch in hidden_batches(self.model, hidden, condition, self.batch_size):
            found, gone = read_hidden(self.model, [hidden[index] for index in batch], condition, meter)
            removed = added(removed, gone)
            for index, logits in zip(batch, found, strict=True):
                number, one = texts[index]
                wanted = torch.tensor([one.tokens[place] for place in one.hidden], device=logits.device)
                share = len(one.hidden) / counts[number]
                sums[number] -= float(token_scores(logits, wanted)[0].sum()) / share / len(self.draws[number])
                waiting[number] -= 1
            observer(waiting.count(0))
        meter.tokens = sum(len(one.hidden) for one in hidden)
        return Outcome(sums, counts, exact=False), removed

    def settings(self) -> dict[str, Any]:
        """Examples and draws."""
        return {**super().settings(), "mc_num": MC_NUM}


def make_likelihood(model: Model, task: Task, options: MeasureOptions) -> AnswerNats:
    """The right answers to a task's examples, encoded as what goes on after its prompts."""
    asked = options.examples
    task.check(model)
    drawn = examples(task, min(asked.n, task.size or asked.n), asked.seed, asked.max_example_tokens)
    prompts = encode_prompts(model, [one.prompt for one in drawn])
    answers = encode_prompts(model, [f" {one.answer.strip()}" for one in drawn], continuing=True)
    passages = tuple(
        Passage(given=given, scored=scored, seed=prompt_seeds([given], 0)[0])
        for given, scored in zip(prompts, answers, strict=True)
    )
    how: dict[str, Any] = {
        "model": model,
        "batch_size": asked.batch_size,
        "kind": task,
        "passages": passages,
        "drawn": {"seed": asked.seed, "max_example_tokens": asked.max_example_tokens},
    }
    if not model.family.bidirectional:
        laid = AnswerNats(point=options.point(model, POINTS), **how)
    else:
        draws = tuple(tuple(_draws(one, asked.seed)) for one in passages)
        laid = BoundedAnswerNats(point=options.point(model, ("block",)), draws=draws, **how)
    laid.check(KeysCondition(point=laid.point))
    warn_beyond_training(model, [one.length for one in passages])
    return laid


def _draws(passage: Passage, seed: int) -> Iterator[HiddenText]:
    """Masks of an answer, as `likelihood.draw_masks` spreads them."""
    for row in draw_masks(passage.scored, MC_NUM, seed).tolist():
        hidden = [len(passage.given) + place for place, masked in enumerate(row) if masked]
        yield HiddenText(tokens=[*passage.given, *passage.scored], hidden=hidden, seed=passage.seed)
