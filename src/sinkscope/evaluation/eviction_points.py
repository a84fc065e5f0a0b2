"""When keys are dropped, and how questions are answered then.

- "context": the context is read and compressed in a pass of its own, before the question is seen, so nothing that
  follows has seen what was dropped; autoregressive models. The same as `compress_prefix` and a generation after it, a
  batch of contexts at a time. Padding lies before shorter contexts and between them and shorter questions.
- "prompt": context and question are read together and compressed then, as published; the first token of the answer
  still comes from the whole cache. Autoregressive models.
- "decode": whenever a layer holds more than `prune_after` keys, while the answer is written. Autoregressive models.
- "block": in a diffusion model's block cache, after each block's first pass.

Answers without a point are generated without looking at any cache.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import torch

from sinkscope.attention import GROUPS, NOT_COUNTED
from sinkscope.compression import Compress
from sinkscope.compression.networks import windows_of
from sinkscope.compression.prefix import second_reading
from sinkscope.compression.settings import empty_cache, refuse_rereading
from sinkscope.decoding import CACHES, Decoding, Denoising, Run
from sinkscope.decoding.autoregressive import decode_canvas
from sinkscope.decoding.canvas import Canvas, lay_out
from sinkscope.decoding.coupling import takes_padding
from sinkscope.decoding.forward import Feed, Forward
from sinkscope.decoding.protocols import Compression, MaskingStats, Step
from sinkscope.decoding.sampling import prompt_seeds
from sinkscope.decoding.settings import Settings
from sinkscope.errors import UserError
from sinkscope.evaluation.cache_stats import Meter, Metered, fresh_cache
from sinkscope.evaluation.conditions import NO_CACHE, KeysCondition
from sinkscope.evaluation.inputs import batches, padded_batches
from sinkscope.families import Model
from sinkscope.interventions import MaskSinks


@dataclass(frozen=True, kw_only=True)
class Question:
    """Token ids of one example. Nothing may be context, something is asked."""

    context: list[int]
    asked: list[int]

    @property
    def prompt(self) -> list[int]:
        """The whole of it."""
        return self.context + self.asked


@dataclass(frozen=True, kw_only=True, eq=False)
class Answers:
    """Of a batch."""

    generated: torch.Tensor
    """(batch, position) token ids"""
    removed: MaskingStats | None
    """What an intervention took away, (1,), over all rows."""


@dataclass(frozen=True, kw_only=True)
class Answering(ABC):
    """Answers questions of one model, with keys masked and dropped. The meter looks at caches and counts tokens."""

    model: Model
    settings: Settings
    intervention: MaskSinks | None = None
    compression: Compression | None = None
    meter: Meter = field(default_factory=Meter)

    @property
    def compress(self) -> Compress | None:
        """The compression, where it drops keys from a cache that can be looked at."""
        assert self.compression is None or isinstance(self.compression, Compress)
        return self.compression

    @property
    def run(self) -> Run:
        """The decoding loop of whole prompts."""
        return Run(self.model, self.settings, self.intervention, self.compression)

    @abstractmethod
    def check(self, questions: Sequence[Question]) -> None:
        """Raise `UserError` for what can't be done to these."""

    def batches(self, questions: Sequence[Question], batch_size: int) -> Iterator[list[int]]:
        """Numbers of questions to answer together."""
        return padded_batches(self.model, [len(one.prompt) for one in questions], batch_size)

    @abstractmethod
    def answers(self, questions: Sequence[Question]) -> Answers:
        """What is generated for a batch."""


class InLoop(Answering):
    """With the whole prompt in one of the decoding loops."""

    @abstractmethod
    def steps(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int] | None = None) -> Iterator[Step]:
        """The steps of the loop, see `Run.steps`."""

    def answers(self, questions: Sequence[Question]) -> Answers:
        prompts = [one.prompt for one in questions]
        removed: MaskingStats | None = None
        for step in self.steps(prompts):
            removed = step.add_to(removed)
        start = len(self.run.prefix) + max(map(len, prompts))
        return Answers(generated=step.canvas[:, start:], removed=None if removed is None else removed.whole())


class Unmetered(InLoop):
    """Without looking at the cache."""

    def check(self, questions: Sequence[Question]) -> None:
        self.run.check([one.prompt for one in questions])

    def steps(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int] | None = None) -> Iterator[Step]:
        return self.run.steps(prompts, seeds)


class _Looped(InLoop):
    """The caches are looked at, also where whoever asks for steps stops before the last one."""

    def check(self, questions: Sequence[Question]) -> None:
        if self.compress is not None:
            refuse_rereading(self.compress)
        self.metered(Metered(compress=self.compress)).check([one.prompt for one in questions])

    def metered(self, metered: Metered) -> Run:
        """The run whose caches are looked at; a diffusion model has some in its blocks alone."""
        blocks = not isinstance(self.settings, Denoising) or self.settings.cache in CACHES
        return replace(self.run, compression=metered if blocks else self.compression)

    def steps(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int] | None = None) -> Iterator[Step]:
        metered, step = Metered(compress=self.compress), None
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        try:
            for step in self.metered(metered).steps(prompts, seeds):
                self.meter.count(step)
                self.look(step, metered, lengths)
                yield step
        finally:
            if step is not None:
                self.look_at_end(step, metered, lengths)

    def look(self, step: Step, metered: Metered, lengths: torch.Tensor) -> None:
        """After a step."""

    def look_at_end(self, step: Step, metered: Metered, lengths: torch.Tensor) -> None:
        """After the last step."""


class _AfterPrompt(_Looped):
    def look(self, step: Step, metered: Metered, lengths: torch.Tensor) -> None:
        if step.index == 0:
            self.meter.look(metered.caches[-1].layers, lengths)


class _WhileDecoding(_Looped):
    def look_at_end(self, step: Step, metered: Metered, lengths: torch.Tensor) -> None:
        # The last token was never fed; rows that ended early carry padding, which counts as theirs here.
        self.meter.look(metered.caches[-1].layers, lengths + step.index)


class _InBlocks(_Looped):
    def look_at_end(self, step: Step, metered: Metered, lengths: torch.Tensor) -> None:
        del metered
        if step.held_bytes is not None:  # every column's keys are there, padding's too
            self.meter.nbytes += step.held_bytes * float(lengths.double().mean()) / max(1, int(lengths.max()))
            self.meter.rows += len(lengths)

    def look(self, step: Step, metered: Metered, lengths: torch.Tensor) -> None:
        first, last = step.queries
        if not metered.blocks or last - first == step.canvas.shape[1]:
            return
        # The first pass over the cache of a block.
        padding = int(lengths.max()) - lengths
        self.meter.look(metered.blocks[-1], (step.canvas.shape[1] - (last - first)) - padding)
        metered.blocks.clear()


class _AfterContext(Answering):
    def check(self, questions: Sequence[Question]) -> None:
        replace(self.run, compression=None).check([one.prompt for one in questions])
        if self.intervention is not None and self.intervention.clean_copy:
            raise UserError("a clean copy would not have the context in its cache; use detect_from='masked'")
        if self.compress is not None:
            self.compress.check(self.model, [len(one.context) for one in questions])
            if self.compress.how.rereads:
                second_reading(self.model, max((one.context for one in questions), key=len, default=[]))

    def batches(self, questions: Sequence[Question], batch_size: int) -> Iterator[list[int]]:
        """Padding between context and question would move sliding windows, so questions are of one length there; for a
        network that takes no padding both are."""
        contexts, asked = [len(one.context) for one in questions], [len(one.asked) for one in questions]
        if not takes_padding(self.model):
            alike: list[object] = list(zip(contexts, asked, strict=True))
        else:
            windows = any(window is not None for window in windows_of(self.model))
            alike = [length if windows else 0 for length in asked]
        return batches([len(one.prompt) for one in questions], batch_size, alike)

    def answers(self, questions: Sequence[Question]) -> Answers:
        model, settings, compress = self.model, self.settings, self.compress
        assert isinstance(settings, Decoding)
        contexts, asked = [one.context for one in questions], [one.asked for one in questions]
        again = compress is not None and compress.how.rereads
        seeds = prompt_seeds(contexts, 0 if compress is None else compress.seed)
        cache = (
            empty_cache(compress, model, seeds)
            if compress is not None and again
            else fresh_cache(model, compress, seeds)
        )
        read = lay_out(model, contexts, 0, model.family.pad_token_id)
        width = read.tokens.shape[1]
        with torch.no_grad():
            asks = torch.where(read.real, GROUPS.index("prompt"), NOT_COUNTED)
            Forward(model, read)(Feed(read.tokens, (0, width), (width - 1, width), asks, cache))
            if again:
                twice = _joined(
                    read, lay_out(model, [second_reading(model, one) for one in contexts], 0, model.family.pad_token_id)
                )
                stop = twice.tokens.shape[1]
                asks = torch.where(twice.real, GROUPS.index("prompt"), NOT_COUNTED)[:, width:]
                Forward(model, twice)(Feed(twice.tokens, (width, stop), (stop - 1, stop), asks, cache))
        self.meter.look(cache.layers, read.real.sum(-1))
        sampling = prompt_seeds([one.prompt for one in questions], settings.seed)
        canvas = _joined(read, lay_out(model, asked, settings.max_new_tokens, model.family.pad_token_id))
        removed: MaskingStats | None = None
        for step in decode_canvas(model, canvas, width, settings, sampling, cache, self.intervention):
            self.meter.count(step)
            removed = step.add_to(removed)
        generated = step.canvas[:, width + max(map(len, asked)) :]
        return Answers(generated=generated, removed=None if removed is None else removed.whole())


def _joined(first: Canvas, second: Canvas) -> Canvas:
    """The columns of one canvas after those of another; all before what is generated counts as prompt."""
    return Canvas(
        tokens=torch.cat([first.tokens, second.tokens], dim=1),
        real=torch.cat([first.real, second.real], dim=1),
        prompt_length=first.tokens.shape[1] + second.prompt_length,
    )


@dataclass(frozen=True, kw_only=True)
class EvictionPoint:
    """One moment at which keys are dropped."""

    name: str
    about: str
    bidirectional: bool
    """Which models it is for."""
    answering: type[Answering]
    compress_when: str = "prompt"
    """What `Compress.when` is."""
    caution: str | None = None
    """What to know before believing its numbers."""


EVICTION_POINTS: Mapping[str, EvictionPoint] = MappingProxyType(
    {
        point.name: point
        for point in (
            EvictionPoint(
                name="context",
                about="the context, before the question is read",
                bidirectional=False,
                answering=_AfterContext,
            ),
            EvictionPoint(
                name="prompt",
                about="context and question, after both were read",
                bidirectional=False,
                answering=_AfterPrompt,
                caution="the first token of every answer comes from the whole cache (--when prompt)",
            ),
            EvictionPoint(
                name="decode",
                about="whenever there are more than --prune-after keys",
                bidirectional=False,
                answering=_WhileDecoding,
                compress_when="decode",
            ),
            EvictionPoint(
                name="block",
                about="a diffusion model's block cache, after each block's first pass",
                bidirectional=True,
                answering=_InBlocks,
                caution="what each block's first pass commits comes from the whole cache (--when block)",
            ),
        )
    }
)
"""By name."""


def points_for(model: Model, points: Sequence[str] = tuple(EVICTION_POINTS)) -> tuple[str, ...]:
    """Those of some points that a model has, its own first."""
    return tuple(one for one in points if EVICTION_POINTS[one].bidirectional == model.family.bidirectional)


def point_for(model: Model, when: str | None, points: Sequence[str]) -> EvictionPoint:
    """The point called `when`, one of `points`; without one the model's own. Raises `UserError` for a model that it is
    not for, and for one without a cache."""
    if not model.family.has_cache:
        raise UserError(
            f"{model.name} is a masked language model without a key-value cache, so there are no keys to drop; "
            "take an autoregressive or a diffusion model"
        )
    there = points_for(model, points)
    if when in there or (when is None and there):
        return EVICTION_POINTS[when or there[0]]
    kind = "sees in both directions" if model.family.bidirectional else "is autoregressive and has no block cache"
    if when is not None and EVICTION_POINTS[when].bidirectional == model.family.bidirectional:
        kind = "is asked for something else here"
    advice = f"use {', '.join(there)}" if there else "nothing can be dropped from what is measured here"
    raise UserError(
        f"{model.name} ({model.family.name}) {kind}: {'dropping' if when is None else f'--when {when}'} is not for it, "
        f"{advice}"
    )


def answering(model: Model, settings: Settings, condition: KeysCondition, meter: Meter) -> Answering:
    """How questions are answered under a condition. Raises `UserError` for a cache of a model that has none."""
    if condition.cache is not None:
        if not isinstance(settings, Denoising):
            raise UserError(f"caches are of mask-filling diffusion models, and {model.name} is none; leave them out")
        settings = replace(settings, cache=None if condition.cache == NO_CACHE else condition.cache)
    kind = Unmetered if condition.point is None else EVICTION_POINTS[condition.point].answering
    return kind(
        model=model,
        settings=settings,
        intervention=condition.intervention,
        compression=condition.compression,
        meter=meter,
    )
