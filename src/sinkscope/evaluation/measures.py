"""Measures by name: what can be asked of a language model under any condition.

    make = find_measure("passkey", MeasureOptions(examples=Examples(n=100)))
    measure = make(load_model("twin-ar"))

- every task with exact answers of `TASKS`, `needle`, and `FILE.jsonl` with questions of one's own;
- `chain-writing`: how probable what a model of chains writes is under the true chain;
- `perplexity` of texts after a prefix, `continuations` of windows after a context, and `FILE`, the continuations of a
  text file, called by its last part, or by its whole path where another measure is called so too;
- `infilling-RATIO`: masked positions filled correctly;
- `likelihood-TASK`: nats a token of the right answers to a task;
- `lm-eval:TASK`: a task of lm-evaluation-harness by its name or its yaml.

A new measure is a subclass of `KeysMeasure` and a function that lays it out, filed in `MEASURES`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sinkscope.discovery import Names, load_installed_plugins
from sinkscope.errors import UserError
from sinkscope.evaluation import chain_measures, needle, text_measures
from sinkscope.evaluation.answer_likelihood import LIKELIHOOD, make_likelihood
from sinkscope.evaluation.answers import check_has_context, make_answers
from sinkscope.evaluation.harness.command import check_installed
from sinkscope.evaluation.measuring import KeysMeasure, MakeMeasure, MeasureOptions
from sinkscope.evaluation.tasks import TASKS, Task, find_task, read_questions
from sinkscope.evaluation.tasks import examples as draw_examples
from sinkscope.evaluation.texts import LITTLE, check_texts
from sinkscope.families import Model

PERPLEXITY, CONTINUATIONS, INFILLING = "perplexity", "continuations", "infilling-"
LM_EVAL = "lm-eval:"


@dataclass(frozen=True)
class MeasureKind:
    """A measure that is known by name. heeds: names of fields of `MeasureOptions` and `Examples` that it heeds beside
    the number of examples and their batches. check: raises `UserError` for options that no model could follow."""

    make: Callable[[Model, MeasureOptions], KeysMeasure]
    heeds: frozenset[str]
    check: Callable[[MeasureOptions], None] = lambda _: None


MEASURES: Names[MeasureKind] = Names("measure")
_TEXTS = frozenset({"texts", "seed", "max_example_tokens"})


def _check_window(options: MeasureOptions) -> None:
    check_texts(options.examples.texts)
    if options.window < text_measures.LEAST:
        raise UserError(f"a window takes at least {text_measures.LEAST} tokens, got {options.window}")


MEASURES.add(
    PERPLEXITY, MeasureKind(text_measures.make_perplexity, _TEXTS, lambda options: check_texts(options.examples.texts))
)
MEASURES.add(CONTINUATIONS, MeasureKind(text_measures.make_continuations, _TEXTS | {"window"}, _check_window))
MEASURES.add(
    needle.NAME,
    MeasureKind(
        needle.make_needle,
        frozenset({"seed", "lengths", "depths", "blocks"}),
        lambda options: needle.check_places(options.lengths, options.depths),
    ),
)
MEASURES.add(chain_measures.WRITING, MeasureKind(chain_measures.make_writing, frozenset({"seed", "blocks"})))
NAMES = (
    *TASKS, chain_measures.WRITING, needle.NAME, PERPLEXITY, CONTINUATIONS, f"{INFILLING}RATIO", f"{LIKELIHOOD}TASK",
    f"{LM_EVAL}TASK", "FILE", "FILE.jsonl",
)  # fmt: skip
"""For people; RATIO stands for a share such as 0.3, FILE for a text file, FILE.jsonl for one with questions."""


def find_measures(names: Sequence[str], options: MeasureOptions) -> list[MakeMeasure]:
    """As `find_measure`, each name once, so that no two measures are called alike."""
    return [find_measure(name, options, called) for name, called in distinct_measures(names)]


def distinct_measures(names: Sequence[str]) -> list[tuple[str, str | None]]:
    """Each name once, and what its measure is called, so that no two are called alike; None for as usual."""
    distinct = list(dict.fromkeys(map(_spelled, names)))
    called = Counter([*NAMES, *(Path(name).name for name in distinct if name not in NAMES)])
    return [(name, name if called[Path(name).name] > 1 else None) for name in distinct]


def _spelled(name: str) -> str:
    """A share of masks in one way: infilling-0.30 is infilling-0.3."""
    return f"{INFILLING}{_ratio(name):g}" if name.startswith(INFILLING) else name


def find_measure(name: str, options: MeasureOptions, called: str | None = None) -> MakeMeasure:
    """The measure called `name`, to be laid out for one model or several. called: what a file is called; its last part
    if left out.

    Raises `UserError` for an unknown name, naming those that there are; texts that can't be read, or that are for
    another measure; a task whose examples have no context where it is to be compressed alone.
    """
    kind = _kind(name, called)
    texts = options.examples.texts
    if texts is not None and "texts" not in kind.heeds:
        raise UserError(
            f"the task {name} has examples of its own, texts {texts!r} are for {PERPLEXITY}, {CONTINUATIONS} and "
            f"{INFILLING}RATIO: leave them out (--texts), or run those tasks apart"
        )
    kind.check(options)
    return lambda model: kind.make(model, options)


def heeded(name: str, texts: str | None) -> frozenset[str]:
    """Fields of `MeasureOptions` and `Examples` that the measure called `name` heeds. texts: asked for; those that are
    not drawn heed no seed."""
    heeds = _kind(name, None).heeds
    return heeds if texts in (None, LITTLE) or "texts" not in heeds else heeds - {"max_example_tokens", "seed"}


def _kind(name: str, called: str | None) -> MeasureKind:
    if name in MEASURES:
        return MEASURES[name]
    if name in TASKS:
        return _of_task(find_task(name))
    if name.startswith(INFILLING):
        return MeasureKind(
            partial(_infilling, ratio=_ratio(name)), _TEXTS, lambda options: check_texts(options.examples.texts)
        )
    if name.startswith(LIKELIHOOD) and name.removeprefix(LIKELIHOOD) in TASKS:
        task = find_task(name.removeprefix(LIKELIHOOD))
        heeds = frozenset({"seed", "max_example_tokens"})
        return MeasureKind(lambda model, options: make_likelihood(model, task, options), heeds)
    if name.startswith(LM_EVAL) and name not in NAMES:
        return _of_harness(name.removeprefix(LM_EVAL), called)
    load_installed_plugins()
    if name in MEASURES or name in TASKS:
        return _kind(name, called)
    file = Path(name)
    if name in NAMES or not file.is_file():
        raise UserError(f"unknown task {name!r}; choose one of {', '.join(NAMES)}, FILE being a text file")
    if file.suffix == ".jsonl":
        return _of_task(read_questions(file))
    make = partial(_file, file=file, name=called or file.name)
    return MeasureKind(make, frozenset({"window"}), lambda options: _check_file(file, options))


def _of_task(task: Task) -> MeasureKind:
    def check(options: MeasureOptions) -> None:
        asked = options.examples
        if options.cached and options.when == "context":
            drawn = draw_examples(task, 1, asked.seed, asked.max_example_tokens)
            check_has_context(task.name, [one.context for one in drawn])

    heeds = frozenset({"seed", "max_example_tokens", "blocks"} if task.size is None else {"blocks"})
    return MeasureKind(lambda model, options: make_answers(model, task, options), heeds, check)


def _of_harness(name: str, called: str | None) -> MeasureKind:
    """lm_eval is imported only where a task of it is asked for."""

    def check(_: MeasureOptions) -> None:
        check_installed()
        from sinkscope.evaluation.harness.measure import load_task

        load_task(name)

    def make(model: Model, options: MeasureOptions) -> KeysMeasure:
        from sinkscope.evaluation.harness.measure import make_task

        return make_task(model, options, name, called or f"{LM_EVAL}{Path(name).name}")

    return MeasureKind(make, frozenset({"blocks"}), check)


def _infilling(model: Model, options: MeasureOptions, ratio: float) -> KeysMeasure:
    return text_measures.make_infilling(model, options, ratio)


def _file(model: Model, options: MeasureOptions, file: Path, name: str) -> KeysMeasure:
    return text_measures.make_file(model, options, file, name)


def _check_file(file: Path, options: MeasureOptions) -> None:
    _check_window(options)
    text_measures.read_text(file)


def _ratio(name: str) -> float:
    try:
        ratio = float(name.removeprefix(INFILLING))
    except ValueError:
        ratio = 0.0
    if not 0 < ratio <= 1:
        raise UserError(f"task {name!r}: the ratio must be a number above 0 and at most 1, infilling-0.3 for example")
    return ratio
