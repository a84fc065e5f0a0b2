"""When keys are dropped, and how questions are answered then.

- "context": the context is read and compressed before the question is seen; autoregressive models.
- "prompt": context and question are read together and compressed then, as published; the first token of the answer
  still comes from the whole cache. Autoregressive models.
- "decode": whenever a layer holds more than `prune_after` keys, while the answer is written. Autoregressive models.
- "block": in a diffusion model's block cache, after each block's first pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch

from sinkscope.compression import Compress
from sinkscope.decoding import Decoding, Run
from sinkscope.decoding.protocols import Step
from sinkscope.decoding.sampling import prompt_seeds
from sinkscope.decoding.settings import Settings
from sinkscope.errors import UserError
from sinkscope.evaluation.compressed.contexts import answers_after, read_contexts, together
from sinkscope.evaluation.compressed.metering import Meter, Metered, fresh_cache
from sinkscope.evaluation.inputs import padded_batches
from sinkscope.families import Model


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Token ids of one example. Nothing may be context, something is question."""

    context: list[int]
    question: list[int]

    @property
    def whole(self) -> list[int]:
        """The prompt."""
        return self.context + self.question


@dataclass(frozen=True)
class Way(ABC):
    """One way to answer questions with keys dropped."""

    name: str
    about: str
    bidirectional: bool
    """Which models it is for."""
    compress_when: str = "prompt"
    """What `Compress.when` is."""
    caution: str | None = None
    """What to know before believing its numbers."""

    def check_model(self, model: Model) -> None:
        """Raise `UserError` for a model of the other kind, and for one without a cache."""
        if not model.family.has_cache:
            raise UserError(
                f"{model.name} is a masked language model without a key-value cache, so there are no keys to drop; "
                "take an autoregressive or a diffusion model"
            )
        if model.family.bidirectional == self.bidirectional:
            return
        there = ", ".join(way.name for way in WAYS.values() if way.bidirectional == model.family.bidirectional)
        kind = "sees in both directions" if model.family.bidirectional else "is autoregressive and has no block cache"
        raise UserError(f"{model.name} ({model.family.name}) {kind}: --when {self.name} is not for it, use {there}")

    def check(self, model: Model, asked: Sequence[Asked], settings: Settings, compress: Compress | None) -> None:
        """Raise `UserError` for what can't be done to these examples."""
        Run(model, settings, None, Metered(compress=compress)).check([one.whole for one in asked])

    def batches(self, model: Model, asked: Sequence[Asked], batch_size: int) -> Iterator[list[int]]:
        """Numbers of examples to run together."""
        return padded_batches(model, [len(one.whole) for one in asked], batch_size)

    @abstractmethod
    def answers(
        self, model: Model, asked: Sequence[Asked], settings: Settings, compress: Compress | None, meter: Meter
    ) -> torch.Tensor:
        """What is generated for a batch, (batch, position); the meter looks at its cache meanwhile."""


class _Context(Way):
    def check(self, model: Model, asked: Sequence[Asked], settings: Settings, compress: Compress | None) -> None:
        Run(model, settings).check([one.whole for one in asked])
        if compress is not None:
            compress.check(model, [len(one.context) for one in asked])

    def batches(self, model: Model, asked: Sequence[Asked], batch_size: int) -> Iterator[list[int]]:
        contexts, questions = [len(one.context) for one in asked], [len(one.question) for one in asked]
        return together(model, contexts, questions, batch_size)

    def answers(
        self, model: Model, asked: Sequence[Asked], settings: Settings, compress: Compress | None, meter: Meter
    ) -> torch.Tensor:
        assert isinstance(settings, Decoding)
        contexts, questions = [one.context for one in asked], [one.question for one in asked]
        seeds = prompt_seeds(contexts, 0 if compress is None else compress.seed)
        held = read_contexts(model, contexts, fresh_cache(model, compress, seeds))
        meter.look(held.cache.layers, held.lengths)
        sampling = prompt_seeds([one.whole for one in asked], settings.seed)
        for step in answers_after(model, held, questions, settings, sampling):
            meter.tokens += int(step.committed.sum())
        return step.canvas[:, held.width + max(map(len, questions)) :]


class _Looped(Way):
    """With the whole prompt in one of the decoding loops."""

    def answers(
        self, model: Model, asked: Sequence[Asked], settings: Settings, compress: Compress | None, meter: Meter
    ) -> torch.Tensor:
        prompts, metered = [one.whole for one in asked], Metered(compress=compress)
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        steps = Run(model, settings, None, metered).steps(prompts)
        for step in steps:
            meter.tokens += int(step.committed.sum())
            self.look(step, metered, lengths, meter)
        self.look_at_end(step, metered, lengths, meter)
        return step.canvas[:, int(lengths.max()) :]

    def look(self, step: Step, metered: Metered, lengths: torch.Tensor, meter: Meter) -> None:
        """After a step."""

    def look_at_end(self, step: Step, metered: Metered, lengths: torch.Tensor, meter: Meter) -> None:
        """After the last step."""


class _Prompt(_Looped):
    def look(self, step: Step, metered: Metered, lengths: torch.Tensor, meter: Meter) -> None:
        if step.index == 0:
            meter.look(metered.caches[-1].layers, lengths)


class _Decode(_Looped):
    def look_at_end(self, step: Step, metered: Metered, lengths: torch.Tensor, meter: Meter) -> None:
        # The last token was never fed; rows that ended early carry padding, which counts as theirs here.
        meter.look(metered.caches[-1].layers, lengths + step.index)


class _Block(_Looped):
    def look(self, step: Step, metered: Metered, lengths: torch.Tensor, meter: Meter) -> None:
        first, last = step.queries
        if not metered.blocks or last - first == step.canvas.shape[1]:
            return
        # The first pass over the cache of a block.
        padding = int(lengths.max()) - lengths
        meter.look(metered.blocks[-1], (step.canvas.shape[1] - (last - first)) - padding)
        metered.blocks.clear()


WAYS: Mapping[str, Way] = MappingProxyType(
    {
        way.name: way
        for way in (
            _Context("context", "the context, before the question is read", bidirectional=False),
            _Prompt(
                "prompt",
                "context and question, after both were read",
                bidirectional=False,
                caution="the first token of every answer comes from the whole cache (--when prompt)",
            ),
            _Decode(
                "decode", "whenever there are more than --prune-after keys", bidirectional=False, compress_when="decode"
            ),
            _Block(
                "block",
                "a diffusion model's block cache, after each block's first pass",
                bidirectional=True,
                caution="what each block's first pass commits comes from the whole cache (--when block)",
            ),
        )
    }
)
"""By name."""


def way_for(model: Model, when: str | None) -> Way:
    """The way called `when`; without one the model's own. Raises `UserError` for a model that it is not for."""
    way = WAYS["block" if model.family.bidirectional else "context"] if when is None else WAYS[when]
    way.check_model(model)
    return way
