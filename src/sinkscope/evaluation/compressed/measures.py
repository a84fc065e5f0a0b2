"""Measures by name: every task with exact answers, `needle`, `perplexity`, and any text file for its perplexity.

A text file is called as its last part is, and by its whole path where another measure is called so too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from sinkscope.errors import UserError
from sinkscope.evaluation.compressed import continuations, needle, questions
from sinkscope.evaluation.compressed.base import MakeMeasure
from sinkscope.evaluation.compressed.questions import Blocks
from sinkscope.evaluation.compressed.ways import WAYS
from sinkscope.evaluation.grids.examples import Examples
from sinkscope.evaluation.grids.which_texts import LITTLE, check_texts
from sinkscope.evaluation.tasks import TASKS, find_task
from sinkscope.evaluation.tasks import examples as draw_examples

PERPLEXITY = "perplexity"
MEASURES = (PERPLEXITY, needle.NAME, *TASKS, "FILE")
"""Names for people; FILE stands for a text file."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What is measured on.

    when: one of `ways.WAYS`; None leaves it to the model. window: tokens of a window of a text. lengths, depths: of the
    needle's haystacks. blocks: of a diffusion model's answers.
    """

    examples: Examples = field(default_factory=Examples)
    when: str | None = None
    window: int = continuations.WINDOW
    lengths: Sequence[int] | None = None
    depths: Sequence[float] | None = None
    blocks: Blocks = field(default_factory=Blocks)


def find_measures(names: Sequence[str], choice: Choice) -> list[MakeMeasure]:
    """As `find_measure`, each name once, so that no two measures are called alike."""
    distinct = list(dict.fromkeys(names))
    called = Counter([*MEASURES, *(Path(name).name for name in distinct if name not in MEASURES)])
    return [find_measure(name, choice, name if called[Path(name).name] > 1 else None) for name in distinct]


def takes(name: str, texts: str | None) -> frozenset[str]:
    """What the measure called `name` heeds of a choice, names of its fields and of those of `Examples`; texts: asked
    for. It always heeds the number of examples, their batches and `when`."""
    if name == needle.NAME:
        return frozenset({"seed", "lengths", "depths", "blocks"})
    if name in TASKS:
        return frozenset({"seed", "room", "blocks"})
    drawn = {"texts"} | ({"seed", "room"} if texts in (None, LITTLE) else set())
    return frozenset({"window"} | (drawn if name == PERPLEXITY else set()))


def find_measure(name: str, choice: Choice, called: str | None = None) -> MakeMeasure:
    """The measure called `name`, to be laid out for one model or several. called: what a text file is called; its last
    part if left out.

    Raises `UserError` for an unknown name, naming those that there are; texts that can't be read, or that are for
    another task; a task whose examples have no context where it is to be compressed alone; a window that is too short.
    """
    examples = choice.examples
    if choice.when is not None and choice.when not in WAYS:
        raise UserError(f"--when must be one of {', '.join(WAYS)}, got {choice.when!r}")
    file = Path(name)
    is_file = name not in MEASURES and file.is_file()
    if not is_file and (name not in MEASURES or name == "FILE"):
        raise UserError(f"unknown task {name!r}; choose one of {', '.join(MEASURES)}, FILE being a text file")
    if examples.texts is not None and name != PERPLEXITY:
        raise UserError(f"the task {name} has examples of its own; leave --texts out, or measure {PERPLEXITY}")
    if is_file or name == PERPLEXITY:
        return _of_text(file if is_file else None, called or file.name, choice)
    if name == needle.NAME:
        needle.check_places(choice.lengths, choice.depths)
        return partial(
            needle.make_needle,
            examples=examples,
            when=choice.when,
            blocks=choice.blocks,
            lengths=choice.lengths,
            depths=choice.depths,
        )
    task = find_task(name)
    if choice.when == "context":
        questions.check_has_context(name, draw_examples(task, 1, examples.seed, examples.room))
    return partial(questions.make_questions, examples=examples, task=task, when=choice.when, blocks=choice.blocks)


def _of_text(file: Path | None, called: str, choice: Choice) -> MakeMeasure:
    """file: None for packaged texts."""
    continuations.check_when(choice.when)
    if choice.window < continuations.LEAST:
        raise UserError(f"a window takes at least {continuations.LEAST} tokens, got {choice.window}")
    examples, when, window = choice.examples, choice.when, choice.window
    if file is None:
        check_texts(examples.texts)
        return partial(continuations.make_continuations, examples=examples, when=when, window=window)
    continuations.read_text(file)
    return partial(continuations.make_file, examples=examples, when=when, window=window, file=file, name=called)
