"""How well an autoregressive model predicts texts, and answers, token by token: exact log-likelihoods in nats.

    plain = perplexity(model, texts)
    masked = perplexity(model, texts, intervention=MaskSinks(1))
    masked.nats_per_token - plain.nats_per_token

Under an intervention that begins after step 0, which is what `MaskSinks` does as published, the first `prefix` tokens
are read in one free pass and the others are fed one by one, as if the model generated them. Under one that begins in
step 0 (`detect="same", first_step=0`), and without one, texts are read in single passes. The tokens scored are the same
in all cases, those after the prefix, so that differences are paired. See `passages` for what each costs.

Misleads: perplexities of models with different tokenizers can't be compared, and a text that a model was trained on
says little. A cut in a single pass looks ahead, see `passages`. In half precision the two ways of reading differ by
rounding, in the plain run too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from typing import Any

from sinkscope.decoding import Prompts
from sinkscope.decoding.canvas import check_autoregressive
from sinkscope.decoding.protocols import MaskingStats, added
from sinkscope.decoding.sampling import prompt_seeds
from sinkscope.errors import UserError
from sinkscope.evaluation.base import check_count
from sinkscope.evaluation.inputs import Observer, encode_texts, token_rows, warn_beyond_training
from sinkscope.evaluation.passages import (
    Passage,
    Reading,
    check_passages,
    read,
    reads_whole,
)
from sinkscope.families import Model
from sinkscope.interventions import MaskSinks

PREFIX = 16


@dataclass(frozen=True, kw_only=True)
class Perplexity:
    """How well a model predicts some texts after their prefixes."""

    model: str
    prefix: int
    context: int
    stride: int | None
    log_likelihoods: tuple[float, ...]
    """Of each text, summed over its scored tokens, in nats."""
    counts: tuple[int, ...]
    """Scored tokens of each text."""
    stepwise: bool
    """Whether tokens were fed one by one."""
    intervention: dict[str, Any] | None
    removed: MaskingStats | None
    """What the intervention took away, (1,), over all texts."""

    @property
    def tokens(self) -> int:
        """Tokens scored."""
        return sum(self.counts)

    @property
    def nats_per_token(self) -> float:
        """Mean negative log-likelihood."""
        return -sum(self.log_likelihoods) / self.tokens

    @property
    def perplexity(self) -> float:
        """exp of `nats_per_token`."""
        return exp(self.nats_per_token)

    def to_dict(self) -> dict[str, Any]:
        """As JSON, with the means."""
        means = {name: getattr(self, name) for name in ("tokens", "nats_per_token", "perplexity")}
        return {**vars(self), "removed": None if self.removed is None else self.removed.to_dict(), **means}


@dataclass(frozen=True, kw_only=True)
class PerplexityPlan:
    """Texts that were checked and cut into windows; made by `plan_perplexity`."""

    model: Model
    prefix: int
    context: int
    stride: int | None
    passages: tuple[Passage, ...]
    texts: tuple[int, ...]
    """Number of the text that each passage is of, ascending from 0."""
    batch_size: int

    def check(self, intervention: MaskSinks | None) -> None:
        """Raise `UserError` for an intervention that can't be applied."""
        check_passages(self.model, self.passages, self.batch_size, intervention)

    def run(self, intervention: MaskSinks | None = None, observer: Observer | None = None) -> Perplexity:
        """Score all texts."""
        sums, counts = [0.0] * (self.texts[-1] + 1), [0] * (self.texts[-1] + 1)
        waiting = [self.texts.count(text) for text in range(len(sums))]
        removed: MaskingStats | None = None
        for numbers, readings in read(self.model, self.passages, batch_size=self.batch_size, intervention=intervention):
            for number, reading in zip(numbers, readings, strict=True):
                text = self.texts[number]
                sums[text] += reading.total
                counts[text] += len(reading.log_likelihoods)
                waiting[text] -= 1
                removed = added(removed, reading.removed)
            if observer is not None:
                observer(waiting.count(0))
        return Perplexity(
            model=self.model.name,
            prefix=self.prefix,
            context=self.context,
            stride=self.stride,
            log_likelihoods=tuple(sums),
            counts=tuple(counts),
            stepwise=not reads_whole(intervention),
            intervention=None if intervention is None else intervention.to_dict(),
            removed=removed,
        )


def plan_perplexity(
    model: Model,
    texts: Prompts,
    *,
    prefix: int = PREFIX,
    context: int | None = None,
    stride: int | None = None,
    batch_size: int = 16,
) -> PerplexityPlan:
    """Encode texts, cut them into windows and check everything, without a pass. Parameters as for `perplexity`."""
    check_autoregressive(model, "`infilling_accuracy`, or `log_likelihood` of an answer")
    longest = model.family.max_length
    context = longest if context is None else context
    for name, value in (("prefix", prefix), ("context", context), ("batch_size", batch_size)):
        check_count(name, value)
    if context > longest:
        raise UserError(f"context {context} is more than the {longest} tokens of {model.name}; lower it")
    if stride is not None:
        check_count("stride", stride)
        if stride >= context:
            raise UserError(f"stride {stride} must be less than the context of {context}; lower it")
    encoded = encode_texts(model, texts)
    _check_texts(encoded, prefix, context, stride)
    windows = [_windows(tokens, prefix, context, stride or context) for tokens in encoded]
    plan = PerplexityPlan(
        model=model,
        prefix=prefix,
        context=context,
        stride=stride,
        passages=tuple(passage for some in windows for passage in some),
        texts=tuple(number for number, some in enumerate(windows) for _ in some),
        batch_size=batch_size,
    )
    plan.check(None)
    warn_beyond_training(model, [passage.length for passage in plan.passages])
    return plan


def perplexity(
    model: Model,
    texts: Prompts,
    *,
    prefix: int = PREFIX,
    context: int | None = None,
    stride: int | None = None,
    batch_size: int = 16,
    intervention: MaskSinks | None = None,
    observer: Observer | None = None,
) -> Perplexity:
    """Mean negative log-likelihood of the tokens of `texts` after their first `prefix` ones.

    texts: strings, or token ids. prefix: tokens that are read but not scored; as published they are read unmasked, and
        an intervention can mask at most one key less. context: tokens that a pass may see; the model's own if left out.
    stride: texts longer than the context are read in windows of the context's length, and each window after the first
        scores its last `stride` tokens, or what is left; such texts are refused if left out.
    batch_size: windows read together; it changes numbers by rounding only. intervention: what is cut meanwhile.
    observer: called after every batch with the number of texts done.

    Raises `UserError` before any work: no texts, a text that ends within the prefix, one longer than the context, text
    without a tokenizer, a model that sees in both directions, an intervention that would mask nothing or everything.
    Warns with `TrainedLengthWarning` where windows are longer than the texts of the training.
    """
    plan = plan_perplexity(model, texts, prefix=prefix, context=context, stride=stride, batch_size=batch_size)
    plan.check(intervention)
    return plan.run(intervention, observer)


@dataclass(frozen=True, kw_only=True)
class AnswerLikelihood:
    """The exact log-likelihood of an answer after its prompt."""

    value: float
    """In nats, over all tokens of the answer."""
    tokens: int
    greedy: bool
    """Whether greedy decoding would give the answer."""
    removed: MaskingStats | None
    """What the intervention took away, (1,)."""


def sequence_log_likelihood(
    model: Model,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    *,
    batch_size: int = 16,
    intervention: MaskSinks | None = None,
    observer: Observer | None = None,
) -> list[AnswerLikelihood]:
    """log p(answer | prompt) of an autoregressive model for each pair of token ids, in the order given.

    An intervention acts as on `perplexity`, the prompt being the prefix: as published, an answer's first token is
    predicted by the unmasked prompt, and from the second on keys are cut. Answers of one token lose nothing then;
    where all are, that is refused.

    Raises `UserError` before any work, see `perplexity`.
    """
    check_autoregressive(model, "`log_likelihood`")
    if len(prompts) != len(answers) or not len(prompts):
        raise UserError(f"every prompt needs one answer, got {len(prompts)} prompts and {len(answers)} answers")
    pairs = list(zip(token_rows(model, prompts, "prompt"), token_rows(model, answers, "answer"), strict=True))
    for number, pair in enumerate(pairs):
        for name, tokens in zip(("prompt", "answer"), pair, strict=True):
            if not tokens:
                raise UserError(f"{name} {number} is empty; give at least one token")
    # The draws of a control depend on the prompt alone, as when it is continued by `decode`.
    passages = [Passage(given=given, scored=scored, seed=prompt_seeds([given], 0)[0]) for given, scored in pairs]
    check_passages(model, passages, batch_size, intervention)
    warn_beyond_training(model, [passage.length for passage in passages])
    readings: dict[int, Reading] = {}
    for numbers, some in read(model, passages, batch_size=batch_size, intervention=intervention):
        readings.update(zip(numbers, some, strict=True))
        if observer is not None:
            observer(len(readings))
    return [_answer(readings[number]) for number in range(len(pairs))]


def _answer(reading: Reading) -> AnswerLikelihood:
    return AnswerLikelihood(
        value=reading.total,
        tokens=len(reading.log_likelihoods),
        greedy=reading.greedy,
        removed=reading.removed,
    )


def _check_texts(encoded: Sequence[Sequence[int]], prefix: int, context: int, stride: int | None) -> None:
    if stride is not None and prefix >= context:
        raise UserError(f"a prefix of {prefix} tokens leaves nothing to score in a context of {context}; lower prefix")
    for number, tokens in enumerate(encoded):
        which = "the text" if len(encoded) == 1 else f"text {number}"
        if len(tokens) <= prefix:
            raise UserError(
                f"{which} has {len(tokens)} tokens, and after a prefix of {prefix} none is left to score; "
                "give longer texts, or lower prefix"
            )
        if len(tokens) > context and stride is None:
            raise UserError(
                f"{which} has {len(tokens)} tokens, the context is {context}; shorten it, or give a stride to read it "
                "in windows"
            )


def _windows(tokens: list[int], prefix: int, context: int, stride: int) -> list[Passage]:
    """The text whole, or windows of the context's length, each scoring what those before it did not."""
    [seed] = prompt_seeds([tokens], 0)
    found: list[Passage] = []
    done = prefix
    while done < len(tokens):
        end = min(context if not found else done + stride, len(tokens))
        found.append(Passage(given=tokens[max(0, end - context) : done], scored=tokens[done:end], seed=seed + done))
        done = end
    return found
