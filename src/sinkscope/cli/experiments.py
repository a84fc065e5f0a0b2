"""`sinkscope ablate` and `sinkscope compress`: what it costs to mask sinks, or to drop keys, beside a control.

Both ask any measure of any language model; one masks while another's keys may be dropped, and the other way round.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from sinkscope.cli.choices import CACHES, MAX_EXAMPLE_TOKENS, MEASURES, WINDOW
from sinkscope.cli.grids import (
    Findings,
    grid_progress,
    laying_out,
    print_findings,
    say_next,
    write_findings,
)
from sinkscope.cli.groups import OptionGroup, add_command, option_name
from sinkscope.cli.keys_options import MaskingOptions, OneDropping, OneMasking, VariedDropping, VariedMasking
from sinkscope.cli.options import (
    BatchSize,
    Json,
    KeepingOptions,
    ModelNames,
    Names,
    SpreadOptions,
    limit_option,
    many,
    names,
    numbers,
    positive,
    seed_of,
    whole_numbers,
)
from sinkscope.cli.workers import WorkerOptions
from sinkscope.discovery import is_filed
from sinkscope.errors import UserError

if TYPE_CHECKING:
    from sinkscope.evaluation import MeasureOptions
    from sinkscope.experiments.sweeping import KeysGrid
    from sinkscope.grids.away import Laid

_CACHE = "dual"
_HEEDED = MappingProxyType(
    {name: name for name in ("seed", "max_example_tokens", "window", "lengths", "depths")}
    | {"cache": "blocks", "block_length": "blocks"}
)
"""Options by what a measure heeds."""
Tasks = Annotated[list[str], typer.Option(metavar="NAME,...", help=f"{', '.join(MEASURES)}.")]


@dataclass(frozen=True, kw_only=True)
class MeasuredOptions(OptionGroup):
    """What is asked of the models, and on which examples."""

    panel: ClassVar[str] = "What is measured"

    task: Tasks
    limit: Annotated[int, limit_option("Examples of each task.")] = 200
    seed: Annotated[int | None, seed_of("Seed of the examples; 0 if left out.")] = None
    max_example_tokens: Annotated[
        int | None, positive(f"Tokens that an example's text may take; {MAX_EXAMPLE_TOKENS} if left out.")
    ] = None
    texts: Annotated[
        str | None, typer.Option(help="Texts of perplexity and infilling: little, prose, reactions, or a FILE.")
    ] = None
    window: Annotated[
        int | None, positive(f"Tokens of a text read together; {WINDOW} if left out. 4/5 of them are the context.")
    ] = None
    lengths: Annotated[Names, many("256,...", "Of needle's texts, in tokens.")] = None
    depths: Annotated[Names, many("0,0.5,1", "Where the needle is, 0 first.")] = None
    cache: Annotated[
        str | None,
        typer.Option(
            help=f"A diffusion model's block cache where keys are dropped: {' or '.join(CACHES)}; {_CACHE} if left out."
        ),
    ] = None
    block_length: Annotated[int | None, positive("Of a diffusion model's blocks, where keys are dropped.")] = None
    batch_size: BatchSize = 16

    def __post_init__(self) -> None:
        if self.cache is not None and self.cache not in CACHES:
            raise UserError(f"--cache must be one of {', '.join(CACHES)}, got {self.cache!r}")
        whole_numbers("--lengths", self.lengths), numbers("--depths", self.depths)
        for name in self.tasks:
            family = re.match("infilling-|likelihood-|lm-eval:", name)
            filed = is_filed("task", name) or is_filed("measure", name)
            if not (family or name in MEASURES[:-2] or Path(name).is_file() or filed):
                there = ", ".join(MEASURES)
                raise UserError(f"unknown task {name!r}; choose one of {there}, FILE being a text file")

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the measures."""
        return names("--task", self.task)

    def options(self, *, cached: bool, when: str | None) -> MeasureOptions:
        """What is measured on."""
        from sinkscope.evaluation import BlockCaching, Examples, MeasureOptions

        return MeasureOptions(
            examples=Examples(
                n=self.limit,
                seed=self.seed or 0,
                max_example_tokens=self.max_example_tokens or MAX_EXAMPLE_TOKENS,
                texts=self.texts,
                batch_size=self.batch_size,
            ),
            cached=cached,
            when=when,
            window=self.window or WINDOW,
            lengths=whole_numbers("--lengths", self.lengths) or None,
            depths=numbers("--depths", self.depths) or None,
            blocks=BlockCaching(cache=self.cache or _CACHE, length=self.block_length),
        )

    def check_heeded(self, *, cached: bool) -> None:
        """Raise `UserError` for an option that no task, each of which there is, heeds."""
        from sinkscope.evaluation.measures import heeded

        for option, heeds in _HEEDED.items():
            if getattr(self, option) in (None, []):
                continue
            if heeds == "blocks" and not cached:
                raise UserError(
                    f"{option_name(option)} is of caches, and no keys are dropped here (--drop); leave it out"
                )
            if not any(heeds in heeded(task, self.texts) for task in self.tasks):
                raise UserError(
                    f"{option_name(option)} does nothing for --task {', '.join(self.tasks)}; leave it out, or name a "
                    "task that heeds it"
                )

    def check_models(self, laid: Sequence[Laid[Any]]) -> None:
        """Raise `UserError` for an option that none of these models heeds."""
        if any(one.told["bidirectional"] for one in laid):
            return
        for option, heeds in _HEEDED.items():
            if heeds == "blocks" and getattr(self, option) is not None:
                there = ", ".join(dict.fromkeys(one.model["name"] for one in laid))
                raise UserError(
                    f"{option_name(option)} is for block caches of diffusion models, and {there} has none; leave it out"
                )


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    add_command(app, "ablate", _ablate)
    add_command(app, "compress", _compress)


def _ablate(
    model_names: ModelNames,
    varied: VariedMasking,
    masking: MaskingOptions,
    dropping: OneDropping,
    measured: MeasuredOptions,
    keeping: KeepingOptions,
    opening: SpreadOptions,
    place: WorkerOptions,
    as_json: Json = False,
) -> None:
    """Mask sinks and controls while models work, and compare."""
    from sinkscope.experiments import masking as experiment
    from sinkscope.experiments import masking_table as table

    compression = dropping.compression()
    grid = varied.grid(masking.masking(), compression)
    options = measured.options(cached=compression is not None, when=dropping.when)
    say = _Saying(experiment, table, experiment.read_maskings, "--ablation", as_json)
    _run(model_names, grid, measured, options, keeping, opening, place, say)


def _compress(
    model_names: ModelNames,
    dropping: VariedDropping,
    masking: OneMasking,
    measured: MeasuredOptions,
    keeping: KeepingOptions,
    opening: SpreadOptions,
    place: WorkerOptions,
    as_json: Json = False,
) -> None:
    """Drop keys from the cache while models work, by several scorers, and compare with random keys."""
    from sinkscope.experiments import eviction as experiment
    from sinkscope.experiments import eviction_table as table

    grid = dropping.grid(masking.intervention())
    when = dropping.when or ("block" if grid.caches else None)  # so that a model without block caches is named as that
    options = measured.options(cached=True, when=when)
    say = _Saying(experiment, table, experiment.read_evictions, "--compression", as_json)
    _run(model_names, grid, measured, options, keeping, opening, place, say)


@dataclass(frozen=True)
class _Saying:
    """How an experiment and its table, modules of `sinkscope.experiments`, tell what was found."""

    experiment: Any
    table: Any
    read: Callable[[Any], Sequence[Any]]
    figure: str
    as_json: bool

    def say(self, cells: Sequence[Any], notes: Sequence[str], keeping: KeepingOptions) -> None:
        """On standard output and, with the cells of earlier grids in the folder too, in files."""
        if keeping.out is not None:
            write_findings(keeping.out, Findings.of(self.experiment, self.table, self.read(keeping.out), notes))
        print_findings(Findings.of(self.experiment, self.table, cells, notes), self.as_json)
        say_next(keeping.out, self.figure, self.as_json)


def _run(
    model_names: Sequence[str],
    grid: KeysGrid,
    measured: MeasuredOptions,
    options: MeasureOptions,
    keeping: KeepingOptions,
    opening: SpreadOptions,
    place: WorkerOptions,
    saying: _Saying,
) -> None:
    """Load models, lay out measures, run a grid and say what it found."""
    from sinkscope.experiments.sweeping import origins_of, run_laid
    from sinkscope.grids.away import lay_out

    addresses = origins_of(model_names, measured.tasks, grid, options, opening.loading())
    measured.check_heeded(cached=options.cached)
    kept = keeping.kept()
    with keeping.told_at_interrupt(), place.opened() as workers:
        with laying_out(saying.as_json, f"laying out {measured.limit} examples of each task"):
            laid = lay_out(addresses, workers)
        measured.check_models(laid)
        with grid_progress(saying.as_json) as observer:
            cells = run_laid(laid, grid, kept, observer)
    saying.say(cells, [f"{one.measure.task}: {note}" for one in laid for note in one.measure.notes], keeping)
