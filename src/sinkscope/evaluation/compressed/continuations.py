"""Perplexity of what follows a compressed context.

A text is cut into windows; the first four fifths of each are read and compressed, the rest is scored after it. As in
the measurements that others have published of their presses, the first token after the context is left out: it is
predicted from the whole context, whatever was dropped.

Misleads: a text that a model was trained on says little; and where one window is all there is, its interval has no
width and says nothing of other texts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sinkscope.compression import Compress
from sinkscope.decoding import encode_prompts
from sinkscope.decoding.canvas import check_autoregressive
from sinkscope.decoding.sampling import prompt_seeds
from sinkscope.errors import UserError
from sinkscope.evaluation.compressed.base import Weighed
from sinkscope.evaluation.compressed.contexts import read_contexts, scores_after, together
from sinkscope.evaluation.compressed.metering import Meter, fresh_cache
from sinkscope.evaluation.compressed.watching import watched_for
from sinkscope.evaluation.compressed.ways import WAYS
from sinkscope.evaluation.grids.examples import Examples, check_naming
from sinkscope.evaluation.grids.outcomes import Outcome
from sinkscope.evaluation.grids.which_texts import texts_for
from sinkscope.evaluation.inputs import check_lengths, warn_beyond_training
from sinkscope.families import Model
from sinkscope.intervals import FEW

WINDOW = 1000
"""Tokens of a window, if nobody says otherwise."""
CONTEXT_SHARE = 0.8
LEAST = 16
"""Tokens of the shortest window that is taken: of shorter ones hardly anything is scored."""
_WHENS = ("context", "decode")


@dataclass(frozen=True, kw_only=True)
class Window:
    """Token ids: what is compressed, and what is scored after it, at least two."""

    context: list[int]
    scored: list[int]

    @property
    def length(self) -> int:
        """All tokens."""
        return len(self.context) + len(self.scored)


@dataclass(frozen=True, kw_only=True)
class Continuations:
    """Mean negative log-likelihood of a token after a compressed context, the logarithm of the perplexity."""

    model: Model
    task: str
    windows: tuple[Window, ...]
    when: str
    batch_size: int
    texts: dict[str, Any]
    """Where they come from."""
    notes: tuple[str, ...] = ()
    better: str = "low"
    unit: str = "nats a token"

    @property
    def n(self) -> int:
        """Number of windows."""
        return len(self.windows)

    def check(self, compress: Compress | None) -> None:
        """Before any work."""

        def check(windows: Sequence[Window]) -> None:
            check_lengths(self.model, [one.length for one in windows], "window", "name a smaller --window")
            if compress is not None:
                compress.check(self.model, [len(one.context) for one in windows])

        check_naming(check, self.windows, lambda number: f"window {number} of {self.texts['texts']}")

    def run(self, compress: Compress | None, observer: Callable[[int], None]) -> tuple[Outcome, Weighed]:
        """Score all windows."""
        sums, counts, meter, done = np.zeros(self.n), np.zeros(self.n), Meter(), 0
        contexts, rests = [len(one.context) for one in self.windows], [len(one.scored) for one in self.windows]
        with watched_for(self.model, compress):
            for batch in together(self.model, contexts, rests, self.batch_size):
                for number, likelihoods in zip(batch, self._scored(batch, compress, meter), strict=True):
                    sums[number], counts[number] = -float(likelihoods.sum()), len(likelihoods)
                done += len(batch)
                observer(done)
        meter.tokens = int(counts.sum())
        return Outcome(sums, counts, exact=False), meter.weighed()

    def settings(self) -> dict[str, Any]:
        """Texts, and a digest of their windows."""
        tokens = json.dumps([[one.context, one.scored] for one in self.windows])
        digest = hashlib.sha256(tokens.encode()).hexdigest()[:32]
        return {"task": self.task, "when": self.when, "n": self.n, **self.texts, "windows": digest}

    def _scored(self, batch: Sequence[int], compress: Compress | None, meter: Meter) -> list[torch.Tensor]:
        """Log-likelihoods of each window, without the first token after the context."""
        some = [self.windows[number] for number in batch]
        contexts = [one.context for one in some]
        seeds = prompt_seeds(contexts, 0 if compress is None else compress.seed)
        held = read_contexts(self.model, contexts, fresh_cache(self.model, compress, seeds))
        lengths = held.lengths
        if self.when == "context":
            meter.look(held.cache.layers, lengths)
        found = scores_after(self.model, held, [one.scored for one in some], stepwise=self.when == "decode")
        if self.when == "decode":
            fed = [len(one.scored) - 1 for one in some]
            meter.look(held.cache.layers, lengths + lengths.new_tensor(fed))
        return [one.after_first().log_likelihoods for one in found]


def make_continuations(model: Model, examples: Examples, when: str | None, window: int) -> Continuations:
    """Windows of packaged texts, or of a file with one text a line."""
    check_model(model)
    texts = texts_for(model, examples)
    # The number asked for is of windows; texts are drawn by their own number.
    windows = [one for text in encode_prompts(model, list(texts.texts)) for one in cut(model, text, window)]
    return _laid_out(model, "perplexity", windows, examples, when, window, {**texts.settings()})


def make_file(model: Model, examples: Examples, when: str | None, window: int, file: Path, name: str) -> Continuations:
    """Windows of a file that is one text. name: what it is called."""
    check_model(model)
    [tokens] = encode_prompts(model, read_text(file))
    return _laid_out(model, name, cut(model, tokens, window), examples, when, window, {"texts": name})


def check_model(model: Model) -> None:
    """Raise `UserError` for a model that has no perplexity."""
    check_autoregressive(model, "a task with exact answers (--task passkey, needle, lookup ...) for what it loses")


def check_when(when: str | None) -> None:
    """Raise `UserError` for what makes no sense with texts."""
    if when is not None and when not in _WHENS:
        raise UserError(
            f"--when {when} is about questions, and perplexity asks none: use {' or '.join(_WHENS)}, or a task with "
            "exact answers"
        )


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


def cut(model: Model, tokens: Sequence[int], window: int) -> list[Window]:
    """Windows of a text, each with the special tokens that the text begins with. What is too short at its end is left
    out."""
    special = set(model.family.special_ids)
    lead = list(takewhile(special.__contains__, tokens))
    step, rest = window - len(lead), tokens[len(lead) :]
    found = []
    for start in range(0, len(rest), step):
        whole = [*lead, *rest[start : start + step]]
        if len(whole) >= LEAST:
            read = int(CONTEXT_SHARE * len(whole))
            found.append(Window(context=whole[:read], scored=whole[read:]))
    return found


def _laid_out(
    model: Model, task: str, windows: Sequence[Window], examples: Examples, when: str | None, window: int,
    texts: dict[str, Any],
) -> Continuations:  # fmt: skip
    way = "context" if when is None else when
    if not windows:
        raise UserError(f"{texts['texts']} has no window of at least {LEAST} tokens; give longer texts")
    taken = tuple(windows[: examples.n])
    notes = []
    if len(taken) < examples.n:
        notes.append(f"{texts['texts']} gives {len(taken)} windows, all are taken where {examples.n} were asked for")
    if len(taken) < FEW:
        notes.append(f"of fewer than {FEW} windows a difference has no interval, so nothing is said of other texts")
    laid = Continuations(
        model=model,
        task=task,
        windows=taken,
        when=WAYS[way].name,
        batch_size=examples.batch_size,
        texts={**texts, "window": window},
        notes=tuple(notes),
    )
    laid.check(None)
    warn_beyond_training(model, [one.length for one in taken])
    return laid
