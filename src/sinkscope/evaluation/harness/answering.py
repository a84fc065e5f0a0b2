"""Answers to the harness's requests: texts that are generated, and likelihoods of continuations and of whole texts.

Requests are sorted by what they ask for, checked, and run in batches. Generating costs one forward pass for each step
and batch. An autoregressive batch ends when each of its answers has; what an intervention takes from an answer after
its end is not counted, so that it does not depend on the batch.

An autoregressive model gives exact likelihoods and whether greedy decoding would give the continuation. A mask-filling
model gives the Monte Carlo bound of `likelihood`, and no word on greedy decoding unless `check_greedy` asks for it, by
filling as many masks one by one; then "no" is only said where that was looked at. Texts longer than the context are
read in windows that each score what those before did not.

Misleads: with a mask-filling model, what the harness calls perplexity is exp of a bound. A mask that begins after step
0 spares the first token of every continuation of an autoregressive model, as do keys that are dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from lm_eval.api.instance import Instance

from sinkscope.decoding import Decoding, Denoising, Run, default_settings, generation
from sinkscope.decoding.protocols import MaskingStats, added
from sinkscope.decoding.sampling import prompt_seeds
from sinkscope.decoding.settings import Settings
from sinkscope.decoding.texts import decode_text
from sinkscope.errors import UserError
from sinkscope.evaluation.cache_stats import Meter
from sinkscope.evaluation.eviction_points import InLoop, Question, answering
from sinkscope.evaluation.harness.arguments import Arguments
from sinkscope.evaluation.harness.requests import Encoder, Pair, Stops, read_wish, settings_for
from sinkscope.evaluation.inputs import Observer, check_lengths, check_single_pass, padded_batches, warn_beyond_training
from sinkscope.evaluation.likelihood import log_likelihood
from sinkscope.evaluation.passages import Passage, Reading, check_passages, read
from sinkscope.families import Model

Scored = tuple[float, bool]
"""Log-likelihood in nats, and whether greedy decoding would give it."""
Working = Callable[[str, int], AbstractContextManager[Observer]]
"""What goes on around so many requests, or parts of such, of a name: it is told how many are done."""


@dataclass(frozen=True, kw_only=True)
class TaskRun:
    """Requests of one task that were answered alike, and with which settings, for the harness's results file.

    kind: `generate_until`, `loglikelihood` or `loglikelihood_rolling`. forward_passes: of all batches together, where
    they were counted. standard_error: mean Monte Carlo error of a likelihood, in nats, where it is an estimate.
    removed: what an intervention took away, (1,), over all requests.
    """

    task: str
    kind: str
    requests: int
    forward_passes: int | None = None
    seconds: float
    settings: dict[str, Any]
    standard_error: float | None = None
    removed: MaskingStats | None

    def to_dict(self) -> dict[str, Any]:
        """As JSON; of what was removed the means."""
        return {**vars(self), "removed": None if self.removed is None else self.removed.to_dict()}


def task_of(request: Instance) -> str:
    """Name of the task that a request is of."""
    return str(request.task_name or "task")


@dataclass(frozen=True)
class _Group:
    """What questions that can be answered together have in common."""

    task: str
    settings: Settings
    until: tuple[str, ...]


_Prompts = Mapping[int, tuple[list[int], int]]
"""Token ids and seed of each question, by its number."""


def plan_answers(model: Model, arguments: Arguments, requests: Sequence[Instance]) -> Mapping[_Group, _Prompts]:
    """Prompts of `generate_until` requests, by what is asked for. Raises `UserError` for what can't be answered."""
    encoder = Encoder(model)
    prompts = [encoder.prompt(one.args[0], f"prompt {number} of {task_of(one)}") for number, one in enumerate(requests)]
    seeds = prompt_seeds(prompts, arguments.seed)
    groups: dict[_Group, dict[int, tuple[list[int], int]]] = {}
    for number, one in enumerate(requests):
        wish = read_wish(one.args[1], task_of(one))
        group = _Group(task_of(one), settings_for(model, arguments.decoding, wish, arguments.seed), wish.until)
        groups.setdefault(group, {})[number] = prompts[number], seeds[number]
    for group, some in groups.items():
        asked = [tokens for tokens, _ in some.values()]
        how = answering(model, group.settings, arguments.condition, Meter())
        how.check([Question(context=[], asked=tokens) for tokens in asked])
        generation.warn_beyond_training(model, asked, group.settings)
    return groups


def answer(
    model: Model, arguments: Arguments, requests: Sequence[Instance], tell: Callable[[int, str], None], meter: Meter
) -> list[TaskRun]:
    """Answer all `generate_until` requests. tell: called with a request's number and its answer as soon as that is
    there. meter: looks at caches where the condition has a point."""
    groups = plan_answers(model, arguments, requests)
    return [_answer_group(model, arguments, group, some, tell, meter) for group, some in groups.items()]


def _answer_group(
    model: Model, arguments: Arguments, group: _Group, prompts: _Prompts, tell: Callable[[int, str], None], meter: Meter
) -> TaskRun:
    start, passes, stops = time.perf_counter(), 0, Stops(model, group.until)
    how = answering(model, group.settings, arguments.condition, meter)
    assert isinstance(how, InLoop)
    removed: MaskingStats | None = None
    numbers = list(prompts)
    for batch in padded_batches(model, [len(prompts[one][0]) for one in numbers], arguments.batch_size):
        chosen = [numbers[place] for place in batch]
        texts, made, gone = _answer_batch(how, stops, [prompts[number] for number in chosen])
        for number, text in zip(chosen, texts, strict=True):
            tell(number, text)
        passes, removed = passes + made, added(removed, gone)
    return TaskRun(
        task=group.task,
        kind="generate_until",
        requests=len(numbers),
        forward_passes=passes,
        seconds=time.perf_counter() - start,
        settings={"kind": type(group.settings).__name__, **asdict(group.settings), "until": group.until},
        removed=removed,
    )


def _answer_batch(
    how: InLoop, stops: Stops, prompts: Sequence[tuple[list[int], int]]
) -> tuple[list[str], int, MaskingStats | None]:
    """Texts, forward passes made, and what was removed from all rows together. A filled prompt is told whole, anything
    else up to its end."""
    encoded, seeds = [tokens for tokens, _ in prompts], [seed for _, seed in prompts]
    start = 0 if how.settings.new_tokens == 0 else max(map(len, encoded))
    stopped = torch.zeros(len(encoded), dtype=torch.bool)
    removed: MaskingStats | None = None
    for step in how.steps(encoded, seeds):
        going = step.takes_part.cpu() & ~stopped
        if step.removed is not None:
            removed = added(removed, step.removed.of(going.to(step.canvas.device)))
        if isinstance(how.settings, Decoding):
            for row in going.nonzero().flatten().tolist():
                stopped[row] = stops.reached(step.canvas[row, start:].tolist())
            if bool(stopped.all()):
                break
    rows = step.canvas.tolist()
    texts = [decode_text(how.model, row, until_end=False) if start == 0 else stops.text(row[start:]) for row in rows]
    return texts, step.index + 1, None if removed is None else removed.whole()


def score(
    model: Model,
    arguments: Arguments,
    requests: Sequence[Instance],
    pairs: Sequence[Sequence[Pair]],
    working: Working,
    meter: Meter,
) -> tuple[list[list[Scored]], list[TaskRun]]:
    """Score the pairs of each request, task by task, and say how. Raises `UserError` before a task's first pass."""
    by_task: dict[str, list[int]] = {}
    for number, request in enumerate(requests):
        by_task.setdefault(task_of(request), []).append(number)
    found: list[list[Scored]] = [[] for _ in requests]
    scorer = _estimated if model.family.bidirectional else partial(_exact, meter=meter)
    runs = []
    for task, numbers in by_task.items():
        flat = [(number, pair) for number in numbers for pair in pairs[number]]
        if not flat:  # empty texts have no windows
            continue
        start = time.perf_counter()
        with working(task, len(flat)) as observer:
            scores, made = scorer(model, arguments, [pair for _, pair in flat], observer)
        for (number, _), scored in zip(flat, scores, strict=True):
            found[number].append(scored)
        kind, seconds = requests[0].request_type, time.perf_counter() - start
        runs.append(TaskRun(task=task, kind=kind, requests=len(numbers), seconds=seconds, **made))
    return found, runs


def check_pairs(model: Model, arguments: Arguments, pairs: Sequence[Pair]) -> None:
    """Raise `UserError` for pairs that can't be scored."""
    condition = arguments.condition
    if not model.family.bidirectional:
        check_passages(model, _passages(pairs), arguments.batch_size, condition)
        return
    if condition.compression is not None:
        raise UserError(
            f"{model.name} makes likelihoods without a cache, so there are no keys to drop; choose tasks that "
            "generate, or leave drop out"
        )
    lengths = [len(pair.given) + len(pair.scored) for pair in pairs]
    check_lengths(model, lengths)
    check_single_pass(model, condition.intervention, lengths)


def _passages(pairs: Sequence[Pair]) -> list[Passage]:
    return [Passage(given=one.given, scored=one.scored, seed=prompt_seeds([one.given], 0)[0]) for one in pairs]


def _exact(
    model: Model, arguments: Arguments, pairs: Sequence[Pair], observer: Observer, meter: Meter
) -> tuple[list[Scored], dict[str, Any]]:
    """As `sequence_log_likelihood`, and what a `TaskRun` says of it."""
    check_pairs(model, arguments, pairs)
    passages = _passages(pairs)
    warn_beyond_training(model, [one.length for one in passages])
    readings: dict[int, Reading] = {}
    for numbers, some in read(model, passages, arguments.condition, batch_size=arguments.batch_size, meter=meter):
        readings.update(zip(numbers, some, strict=True))
        observer(len(readings))
    meter.tokens += sum(len(pair.scored) for pair in pairs)
    removed: MaskingStats | None = None
    for number in range(len(pairs)):
        removed = added(removed, readings[number].removed)
    scores = [(readings[number].total, readings[number].greedy) for number in range(len(pairs))]
    return scores, {"settings": {"kind": "exact"}, "removed": removed}


def _estimated(
    model: Model, arguments: Arguments, pairs: Sequence[Pair], observer: Observer
) -> tuple[list[Scored], dict[str, Any]]:
    check_pairs(model, arguments, pairs)
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
            intervention=arguments.condition.intervention,
        )
        scores.append((found.value, arguments.check_greedy and _fills_alike(model, arguments, pair)))
        errors += [] if found.standard_error is None else [found.standard_error]
        passes, removed = passes + found.passes, added(removed, found.removed)
        observer(number + 1)
    names = ("mc_num", "cfg_scale", "seed", "check_greedy")
    return scores, {
        "settings": {"kind": "Monte Carlo", **{name: getattr(arguments, name) for name in names}},
        "forward_passes": passes,
        "standard_error": sum(errors) / len(errors) if errors else None,
        "removed": removed,
    }


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
        cache=own.cache,
    )
    for step in Run(model, settings, arguments.condition.intervention).steps([pair.given]):
        filled = step.canvas[0, len(pair.given) :][: len(pair.scored)].tolist()
    return bool(filled == pair.scored)
