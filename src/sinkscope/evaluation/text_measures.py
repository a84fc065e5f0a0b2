"""Measures that generate nothing: nats a token, positions filled, and likelihoods of right answers.

`perplexity` scores texts after a short prefix. `continuations` cuts a text into windows: the first four fifths of each
are read, and compressed where keys are dropped, the rest is scored after it. As in the measurements that others have
published of their presses, the first token after the context is left out there: it is predicted from the whole context,
whatever was dropped.

Misleads: a text that a model was trained on says little; and where one window is all there is, its interval has no
width and says nothing of other texts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from sinkscope.decoding import encode_prompts
from sinkscope.decoding.canvas import check_autoregressive
from sinkscope.decoding.protocols import MaskingStats, added
from sinkscope.decoding.sampling import prompt_seeds
from sinkscope.errors import UserError
from sinkscope.evaluation.cache_stats import Meter
from sinkscope.evaluation.conditions import KeysCondition
from sinkscope.evaluation.infilling import InfillingPlan, MaskedText, plan_infilling
from sinkscope.evaluation.inputs import check_lengths, check_naming, warn_beyond_training
from sinkscope.evaluation.measuring import KeysMeasure, MeasureOptions
from sinkscope.evaluation.passages import Passage, check_passages, read
from sinkscope.evaluation.perplexity import PerplexityPlan, plan_perplexity
from sinkscope.evaluation.texts import Texts, text_source
from sinkscope.families import Model
from sinkscope.grids import Outcome
from sinkscope.intervals import FEW

CONTEXT_SHARE = 0.8
LEAST = 16
"""Tokens of the shortest window that is taken: of shorter ones hardly anything is scored."""
POINTS = ("context", "decode")
"""Eviction points of texts that are read."""
NATS = "nats a token"
_DRAWS = 3
"""Maskings of each text."""


@dataclass(frozen=True, kw_only=True)
class NatsPerToken(KeysMeasure):
    """Mean negative log-likelihood of a token, the logarithm of the perplexity."""

    plan: PerplexityPlan
    texts: Texts

    task = "perplexity"
    better = "low"
    unit = NATS

    @property
    def n(self) -> int:
        """Number of texts."""
        return self.plan.texts[-1] + 1

    def check(self, condition: KeysCondition) -> None:
        """Before any work."""

        def check(passages: Sequence[Passage]) -> None:
            replace(self.plan, passages=tuple(passages)).check(condition)

        check_naming(check, self.plan.passages, lambda number: f"text {self.plan.texts[number]} of {self.texts.name}")

    def score(
        self, condition: KeysCondition, meter: Meter, observer: Callable[[int], None]
    ) -> tuple[Outcome, MaskingStats | None]:
        """Score all texts."""
        found = self.plan.run(condition, observer, meter)
        meter.tokens = found.tokens
        counts = np.array(found.counts, dtype=np.float64)
        return Outcome(-np.array(found.log_likelihoods), counts, exact=False), found.removed

    def settings(self) -> dict[str, Any]:
        """Texts and windows."""
        tokens = [[*passage.given, *passage.scored] for passage in self.plan.passages]
        return {"task": self.task, **self.texts.settings(), "tokens": tokens, "prefix": self.plan.prefix}


def make_perplexity(model: Model, options: MeasureOptions) -> NatsPerToken:
    """Perplexity of texts, for an autoregressive model."""
    check_autoregressive(model, "the task infilling-0.3 (--task), or another share of masks: it has no perplexity")
    point, texts = options.point(model, POINTS), text_source(model, options.examples)
    plan = plan_perplexity(model, texts.texts, batch_size=options.examples.batch_size)
    return NatsPerToken(
        model=model, point=point, batch_size=options.examples.batch_size, notes=texts.notes, plan=plan, texts=texts
    )


@dataclass(frozen=True, kw_only=True)
class FilledPositions(KeysMeasure):
    """Share of masked positions that are filled correctly, at one ratio of masks."""

    plan: InfillingPlan
    texts: Texts

    better = "high"
    unit = "share of masked positions filled correctly"

    @property
    def task(self) -> str:
        """With the ratio."""
        return f"infilling-{self.plan.ratios[0]:g}"

    @property
    def n(self) -> int:
        """Number of texts."""
        return len(self.plan.rows) // self.plan.draws

    def check(self, condition: KeysCondition) -> None:
        """Before any work."""

        def check(rows: Sequence[MaskedText]) -> None:
            replace(self.plan, rows=tuple(rows)).check(condition)

        rows = self.plan.rows
        check_naming(check, rows, lambda number: f"text {rows[number].text} of {self.texts.name}")

    def score(
        self, condition: KeysCondition, meter: Meter, observer: Callable[[int], None]
    ) -> tuple[Outcome, MaskingStats | None]:
        """Fill all texts."""
        [found] = self.plan.run(condition, observer, meter)
        meter.tokens = found.n
        right, masked = np.array(found.right, dtype=np.float64), np.array(found.positions, dtype=np.float64)
        return Outcome(right, masked, exact=False), found.removed

    def settings(self) -> dict[str, Any]:
        """Texts and masks."""
        plan = self.plan
        tokens = [row.tokens for row in plan.rows]
        return {
            "task": self.task,
            **self.texts.settings(),
            "tokens": tokens,
            "draws": plan.draws,
            "seed": plan.seed,
            "ratio": plan.ratios[0],
        }


def make_infilling(model: Model, options: MeasureOptions, ratio: float) -> FilledPositions:
    """Infilling of texts at a mask ratio, for a model with mask tokens."""
    examples, point = options.examples, options.point(model, ("block",))
    texts = text_source(model, examples)
    plan = plan_infilling(
        model, texts.texts, ratios=(ratio,), draws=_DRAWS, seed=examples.seed, batch_size=examples.batch_size
    )
    return FilledPositions(
        model=model, point=point, batch_size=examples.batch_size, notes=texts.notes, plan=plan, texts=texts
    )


@dataclass(frozen=True, kw_only=True)
class PassageNats(KeysMeasure):
    """Mean negative log-likelihood of a scored token of passages."""

    passages: tuple[Passage, ...]

    better = "low"
    unit = NATS
    left_out: ClassVar[int] = 0
    """Scored tokens at the start of each passage that do not count."""

    @property
    def n(self) -> int:
        """Number of passages."""
        return len(self.passages)

    def score(
        self, condition: KeysCondition, meter: Meter, observer: Callable[[int], None]
    ) -> tuple[Outcome, MaskingStats | None]:
        """Score all passages."""
        sums, counts, done = np.zeros(self.n), np.zeros(self.n), 0
        removed: MaskingStats | None = None
        for batch, readings in read(self.model, self.passages, condition, batch_size=self.batch_size, meter=meter):
            for number, one in zip(batch, readings, strict=True):
                counted = one.log_likelihoods[self.left_out :]
                sums[number], counts[number] = -float(counted.sum()), len(counted)
                removed = added(removed, one.removed)
            done += len(batch)
            observer(done)
        meter.tokens = int(counts.sum())
        return Outcome(sums, counts, exact=False), removed

    def digest(self) -> str:
        """Of the passages' tokens."""
        tokens = json.dumps([[one.given, one.scored] for one in self.passages])
        return hashlib.sha256(tokens.encode()).hexdigest()[:32]


@dataclass(frozen=True, kw_only=True)
class Continuations(PassageNats):
    """Mean negative log-likelihood of a token after the context of its window, the first one left out."""

    called: str
    texts: dict[str, Any]
    """Where the windows come from."""

    left_out = 1

    @property
    def task(self) -> str:
        """Of packaged texts, or of a file."""
        return self.called

    def check(self, condition: KeysCondition) -> None:
        """Before any work."""

        def check(windows: Sequence[Passage]) -> None:
            check_lengths(self.model, [one.length for one in windows], "window", "name a smaller --window")
            check_passages(self.model, windows, self.batch_size, condition)

        check_naming(check, self.passages, lambda number: f"window {number} of {self.texts['texts']}")

    def settings(self) -> dict[str, Any]:
        """Texts, and a digest of their windows."""
        return {"task": self.task, "n": self.n, **self.texts, "windows": self.digest()}


def make_continuations(model: Model, options: MeasureOptions) -> Continuations:
    """Windows of packaged texts, or of a file with one text a line."""
    _check_continued(model)
    texts = text_source(model, options.examples)
    # The number asked for is of windows; texts are drawn by their own number.
    windows = [one for text in encode_prompts(model, list(texts.texts)) for one in cut(model, text, options.window)]
    return _laid_out(model, "continuations", windows, options, {**texts.settings()})


def make_file(model: Model, options: MeasureOptions, file: Path, name: str) -> Continuations:
    """Windows of one text file, called `name`."""
    _check_continued(model)
    [tokens] = encode_prompts(model, read_text(file))
    return _laid_out(model, name, cut(model, tokens, options.window), options, {"texts": file.name})


def read_text(file: Path) -> str:
    """Raises `UserError` for what can't be read or holds nothing."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise UserError(f"{str(file)!r}: {reason}; name a text file") from error
    if not text.strip():
        raise UserError(f"{file} holds no text")
    return text


def cut(model: Model, tokens: Sequence[int], window: int) -> list[Passage]:
    """Windows of a text, each with the special tokens that the text begins with. What is too short at its end is left
    out."""
    special = set(model.family.special_ids)
    lead = list(takewhile(special.__contains__, tokens))
    step, rest = window - len(lead), tokens[len(lead) :]
    found = []
    for start in range(0, len(rest), step):
        whole = [*lead, *rest[start : start + step]]
        if len(whole) >= LEAST:
            context = int(CONTEXT_SHARE * len(whole))
            [seed] = prompt_seeds([whole[:context]], 0)
            found.append(Passage(given=whole[:context], scored=whole[context:], seed=seed))
    return found


def _check_continued(model: Model) -> None:
    check_autoregressive(model, "a task with exact answers, or infilling-0.3: it has no perplexity")


def _laid_out(
    model: Model, called: str, windows: Sequence[Passage], options: MeasureOptions, texts: dict[str, Any]
) -> Continuations:
    asked, point = options.examples.n, options.point(model, POINTS)
    if not windows:
        raise UserError(f"{texts['texts']} has no window of at least {LEAST} tokens; give longer texts")
    taken = tuple(windows[:asked])
    notes = []
    if len(taken) < asked:
        notes.append(f"{texts['texts']} gives {len(taken)} windows, all are taken where {asked} were asked for")
    if len(taken) < FEW:
        notes.append(f"of fewer than {FEW} windows a difference has no interval, so nothing is said of other texts")
    laid = Continuations(
        model=model,
        point=point,
        batch_size=options.examples.batch_size,
        notes=tuple(notes),
        called=called,
        passages=taken,
        texts={**texts, "window": options.window},
    )
    laid.check(KeysCondition(point=point))
    warn_beyond_training(model, [one.length for one in taken])
    return laid
