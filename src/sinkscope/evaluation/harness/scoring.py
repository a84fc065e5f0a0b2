"""Log-likelihoods of continuations and of whole texts, for `loglikelihood` and `loglikelihood_rolling` requests.

An autoregressive model gives exact sums and whether greedy decoding would give the continuation. A mask-filling model
gives the Monte Carlo bound of `likelihood`, and no word on greedy decoding unless `check_greedy` asks for it, by
filling as many masks one by one; then "no" is only said where that was looked at.

Texts longer than the context are read in windows that each score what those before did not, as the harness does.

Misleads: with a mask-filling model, what the harness calls perplexity is exp of a bound. And a mask that begins after
step 0 spares the first token of every continuation of an autoregressive model, as do keys that are dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from sinkscope.compression import Compress
from sinkscope.decoding import Denoising, Run, default_settings
from sinkscope.decoding.protocols import MaskingStats, active, added
from sinkscope.decoding.sampling import prompt_seeds
from sinkscope.errors import UserError
from sinkscope.evaluation.compressed.contexts import read_contexts, scores_after, together
from sinkscope.evaluation.compressed.watching import watched_for
from sinkscope.evaluation.harness.arguments import Arguments
from sinkscope.evaluation.harness.records import TaskRun
from sinkscope.evaluation.harness.working import counting, smaller_batches
from sinkscope.evaluation.inputs import check_lengths, check_single_pass
from sinkscope.evaluation.likelihood import log_likelihood
from sinkscope.evaluation.perplexity import sequence_log_likelihood
from sinkscope.families import Model

Scored = tuple[float, bool]
"""Log-likelihood in nats, and whether greedy decoding would give it."""
Observer = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Token ids to be read and token ids to be scored after them, at least one of each."""

    given: list[int]
    scored: list[int]


def windows(tokens: Sequence[int], start: Sequence[int], context: int) -> list[Pair]:
    """A text as pairs that score each of its tokens once, in windows of at most `context` tokens of it.

    start: what the first token follows; its last token counts.
    """
    rolled = get_rolling_token_windows(list(tokens), start[-1], context - len(start), 1)
    pairs = [make_disjoint_window(window) for window in rolled]
    return [
        Pair(given=[*start[:-1], *given] if number == 0 else given, scored=scored)
        for number, (given, scored) in enumerate(pairs)
    ]


def score(
    model: Model, arguments: Arguments, kind: str, tasks: Sequence[str], pairs: Sequence[Sequence[Pair]]
) -> tuple[list[list[Scored]], list[TaskRun]]:
    """Score the pairs of each request, task by task, and say how.

    kind: of the requests. tasks, pairs: of each request. Raises `UserError` before a task's first pass.
    """
    by_task: dict[str, list[int]] = {}
    for number, task in enumerate(tasks):
        by_task.setdefault(task, []).append(number)
    found: dict[int, list[Scored]] = {}
    runs = []
    for task, numbers in by_task.items():
        flat = [pair for number in numbers for pair in pairs[number]]
        if not flat:  # empty texts have no windows
            found.update({number: [] for number in numbers})
            continue
        with counting(task, len(flat)) as observer, smaller_batches(arguments.batch_size):
            scores, made = _score(model, arguments, task, kind, flat, observer)
        runs.append(replace(made, requests=len(numbers)))
        rest = iter(scores)
        found.update({number: [next(rest) for _ in pairs[number]] for number in numbers})
    return [found[number] for number in range(len(tasks))], runs


def _score(
    model: Model, arguments: Arguments, task: str, kind: str, pairs: Sequence[Pair], observer: Observer
) -> tuple[list[Scored], TaskRun]:
    start = time.perf_counter()
    scorer = _estimated if model.family.bidirectional else _exact
    outcome = scorer(model, arguments, pairs, observer)
    made = TaskRun(
        task=task,
        kind=kind,
        requests=len(pairs),
        forward_passes=outcome.passes,
        seconds=time.perf_counter() - start,
        settings=outcome.settings,
        standard_error=outcome.standard_error,
        removed=outcome.removed,
    )
    return outcome.scores, made


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    scores: list[Scored]
    settings: dict[str, object]
    passes: int | None = None
    standard_error: float | None = None
    removed: MaskingStats | None


def _exact(model: Model, arguments: Arguments, pairs: Sequence[Pair], observer: Observer) -> _Outcome:
    if arguments.compression is not None:
        return _compressed(model, arguments, arguments.compression, pairs, observer)
    found = sequence_log_likelihood(
        model,
        [pair.given for pair in pairs],
        [pair.scored for pair in pairs],
        batch_size=arguments.batch_size,
        intervention=arguments.masking,
        observer=observer,
    )
    removed: MaskingStats | None = None
    for one in found:
        removed = added(removed, one.removed)
    scores = [(one.value, one.greedy) for one in found]
    return _Outcome(scores=scores, settings={"kind": "exact"}, removed=removed)


def _compressed(
    model: Model, arguments: Arguments, compression: Compress, pairs: Sequence[Pair], observer: Observer
) -> _Outcome:
    if active(arguments.masking) is not None:
        raise UserError("likelihoods can't be made with keys masked and others dropped; leave one out")
    given, rest = [len(pair.given) for pair in pairs], [len(pair.scored) for pair in pairs]
    check_lengths(model, [sum(one) for one in zip(given, rest, strict=True)], "text")
    compression.check(model, given)
    found: dict[int, Scored] = {}
    with watched_for(model, compression):
        for batch in together(model, given, rest, arguments.batch_size):
            some = [pairs[number] for number in batch]
            contexts = [pair.given for pair in some]
            cache = compression.cache(model, prompt_seeds(contexts, arguments.seed))
            held, stepwise = read_contexts(model, contexts, cache), compression.prune_after is not None
            scores = scores_after(model, held, [pair.scored for pair in some], stepwise=stepwise)
            found |= {
                number: (float(one.log_likelihoods.sum()), bool(one.likeliest.all()))
                for number, one in zip(batch, scores, strict=True)
            }
            observer(len(found))
    return _Outcome(scores=[found[number] for number in range(len(pairs))], settings={"kind": "exact"}, removed=None)


def _estimated(model: Model, arguments: Arguments, pairs: Sequence[Pair], observer: Observer) -> _Outcome:
    if arguments.compression is not None:
        raise UserError(
            f"{model.name} makes likelihoods without a cache, so there are no keys to drop; choose tasks that "
            "generate, or leave scorer out"
        )
    lengths = [len(pair.given) + len(pair.scored) for pair in pairs]
    check_lengths(model, lengths, "text")
    check_single_pass(model, arguments.masking, lengths)
    scores: list[Scored] = []
    errors: list[float] = []
    passes = 0
    removed: MaskingStats | None = None
    for number, pair in enumerate(pairs):
        found = log_likelihood(
            model,
            pair.given,
            pair.scored,
            mc_num=arguments.mc_num,
            batch_size=arguments.batch_size,
            cfg_scale=arguments.cfg_scale,
            seed=arguments.seed,
            intervention=arguments.masking,
        )
        greedy = arguments.check_greedy and _fills_alike(model, arguments, pair)
        scores.append((found.value, greedy))
        errors += [] if found.standard_error is None else [found.standard_error]
        passes += found.passes
        removed = added(removed, found.removed)
        observer(number + 1)
    names = ("mc_num", "cfg_scale", "seed", "check_greedy")
    return _Outcome(
        scores=scores,
        settings={"kind": "Monte Carlo", **{name: getattr(arguments, name) for name in names}},
        passes=passes,
        standard_error=sum(errors) / len(errors) if errors else None,
        removed=removed,
    )


def _fills_alike(model: Model, arguments: Arguments, pair: Pair) -> bool:
    """Whether filling masks one by one, the surest first, gives the scored tokens: LLaDA's greedy check."""
    own = default_settings(model)
    assert isinstance(own, Denoising)
    settings = Denoising(
        gen_length=len(pair.scored),
        block_length=None,
        steps=None,
        confidence=own.confidence,
        cfg_scale=arguments.cfg_scale,
    )
    for step in Run(model, settings, arguments.masking).steps([pair.given]):
        filled = step.canvas[0, len(pair.given) :].tolist()
    return bool(filled == pair.scored)
