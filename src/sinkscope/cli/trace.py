"""`sinkscope trace`: record what attention each token receives while a model generates."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import typer

from sinkscope.addresses import beside, file_sizes
from sinkscope.cli import console
from sinkscope.cli.choices import KERNELS, check_names
from sinkscope.cli.groups import OptionGroup, add_command, given_options
from sinkscope.cli.keys_options import OneMasking, masked_line
from sinkscope.cli.options import (
    DecodingOptions,
    Json,
    ModelOrModule,
    Names,
    OpeningOptions,
    OtherVersions,
    PromptOptions,
    caution_without_question,
    many,
    told_at_interrupt,
    whole_numbers,
)
from sinkscope.cli.workers import WorkerOptions
from sinkscope.discovery import names_function
from sinkscope.errors import UserError

if TYPE_CHECKING:
    import rich.progress

    from sinkscope.trace import Progress, Prompt, Recording, Trace

Precision = Annotated[
    Literal["rounded", "float32"],
    typer.Option(help="rounded: large arrays lose bits that no rule could tell; float32: none does."),
]


_OF_PASSES = ("--precision", "--norms", "--entropy", "--kernel")
"""What may be recorded of a module of one's own."""


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "trace", _trace)


@dataclass(frozen=True, kw_only=True)
class RecordingOptions(OptionGroup):
    """What is kept of each step."""

    panel: ClassVar[str] = "What is recorded"

    precision: Precision = "rounded"
    by_group: Annotated[
        Literal["mean", "heads", "none"], typer.Option(help="By group of queries: mean over heads, every head, or not.")
    ] = "mean"
    norms: Annotated[bool, typer.Option("--norms", help="Also keep key and value norms.")] = False
    entropy: Annotated[bool, typer.Option("--entropy", help="Also keep each query's attention entropy.")] = False
    final: Annotated[bool, typer.Option(help="Pass the finished sequence once more whole.")] = True
    kinds: Annotated[bool, typer.Option("--kinds", help="Of that pass also what tells kinds of sinks apart.")] = False
    map_steps: Annotated[Names, many("0,5,...", "Steps whose full maps are kept.")] = None
    map_layers: Annotated[Names, many("0,5,...", "Layers of those maps; all.")] = None
    map_heads: Annotated[Names, many("0,5,...", "Heads of those maps; all.")] = None
    kernel: Annotated[str | None, typer.Option(help=f"{' or '.join(KERNELS)}; the faster one.")] = None

    def __post_init__(self) -> None:
        check_names("attention kernel", [] if self.kernel is None else [self.kernel], KERNELS)
        steps, *among = self._map_numbers()
        if any(among) and not steps:
            raise UserError("--map-layers and --map-heads choose among the maps of --map-steps; give --map-steps too")

    def recording(self) -> Recording:
        """The settings."""
        from sinkscope.trace import Maps, Recording

        steps, layers, heads = self._map_numbers()
        return Recording(
            precision=self.precision,
            by_group=None if self.by_group == "none" else self.by_group,
            norms=self.norms,
            entropy=self.entropy,
            final=self.final,
            kinds=self.kinds,
            maps=Maps(steps=steps, layers=layers, heads=heads) if steps else None,
            kernel=self.kernel,
        )

    def _map_numbers(self) -> Sequence[tuple[int, ...]]:
        given = {"--map-steps": self.map_steps, "--map-layers": self.map_layers, "--map-heads": self.map_heads}
        return [whole_numbers(option, numbers) for option, numbers in given.items()]


def _trace(
    model_name: ModelOrModule,
    decoding: DecodingOptions,
    masking: OneMasking,
    recorded: RecordingOptions,
    asked: PromptOptions,
    opening: OpeningOptions,
    place: WorkerOptions,
    out: Annotated[Path, typer.Option(help="Folder or address of the trace, a zarr store.")],
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted trace.")] = False,
    other_versions: OtherVersions = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing trace.")] = False,
    as_json: Json = False,
) -> None:
    """Record received attention for every step, layer, head and token."""
    if resume and overwrite:
        raise UserError("give one of --resume and --overwrite, not both")
    if names_function(model_name):
        own = {"--resume": resume, "--other-versions": other_versions}
        groups = given_options(decoding, masking, asked, recorded, place)
        _refuse_foreign([*groups, *filter(own.get, own), *given_options(opening)])
        _tell(_trace_module(model_name, recorded, out, overwrite=overwrite), as_json)
        return
    given = asked.read()
    from sinkscope.trace import check_output, open_trace

    check_output(out, resume=resume, overwrite=overwrite)  # before a model is loaded for nothing
    kept_as = {
        "out": out, "recording": recorded.recording(), "batch_size": asked.batch_size, "resume": resume,
        "other_versions": other_versions, "overwrite": overwrite, "intervention": masking.intervention(),
    }  # fmt: skip

    def kept() -> str:
        if not (out / "zarr.json").exists():
            return "nothing was kept"
        done = len(open_trace(out).complete_ids)
        return f"{done} of {len(given)} samples are complete in {out}: go on with --resume"

    with told_at_interrupt(kept), console.progress(as_json) as bar:
        run = _Run(model_name, opening, given, decoding, kept_as)
        trace = run.here(bar) if place.on is None else run.on_workers(place.on, place, bar)
    _tell(trace, as_json)


@dataclass(frozen=True)
class _Run:
    """What is to be recorded: a model, its prompts, and how `record` is to keep what it sees."""

    model_name: str
    opening: OpeningOptions
    prompts: Sequence[Prompt]
    decoding: DecodingOptions
    kept_as: Mapping[str, Any]

    def here(self, bar: rich.progress.Progress) -> Trace:
        """Record in this process."""
        from sinkscope.families import load_model
        from sinkscope.trace import record

        model = load_model(self.model_name, **self.opening.loading())
        settings = self.decoding.settings_for(model)
        samples = bar.add_task("samples", total=len(self.prompts))
        steps = bar.add_task("steps", total=None)

        def observe(now: Progress) -> None:
            bar.update(samples, completed=now.samples_done)
            bar.update(steps, completed=now.step, total=now.most_steps)

        trace = record(model, self.prompts, settings, observer=observe, **self.kept_as)
        caution_without_question(model, self.prompts)  # after all mistakes, which are one line
        return trace

    def on_workers(self, on: str, place: WorkerOptions, bar: rich.progress.Progress) -> Trace:
        """Record on workers."""
        from sinkscope.experiments.sharding import record_shards

        samples = bar.add_task("samples", total=len(self.prompts))
        return record_shards(
            self.model_name, self.prompts, self.decoding.given, on=on, workers=place.workers,
            gpus_per_worker=place.gpus_per_worker, observer=lambda done, _: bar.update(samples, completed=done),
            **self.kept_as, **self.opening.loading(),
        )  # fmt: skip


def _refuse_foreign(given: Sequence[str]) -> None:
    """Raise `UserError` for an option that says nothing of a module of the user's own."""
    foreign = [name for name in given if name not in _OF_PASSES]
    if foreign:
        raise UserError(
            f"{foreign[0]} means nothing for a module of your own, whose function gives it with its inputs; leave it "
            f"out (heeded are {', '.join(_OF_PASSES)}, --out, --overwrite)"
        )


def _trace_module(spec: str, recorded: RecordingOptions, out: Path, *, overwrite: bool) -> Trace:
    """Record passes of a module of the user's own."""
    from sinkscope.trace import check_output, open_module, record_passes

    check_output(out, resume=False, overwrite=overwrite)  # before the user's code runs for nothing
    with redirect_stdout(sys.stderr):  # what it prints is no part of what is told here
        return record_passes(open_module(spec), out=out, recording=recorded.recording(), overwrite=overwrite)


def _tell(trace: Trace, as_json: bool) -> None:
    size = sum(file_sizes(trace.path).values())
    removed = _removed(trace)
    samples = [{"id": header.id, "steps": header.steps, "complete": header.complete} for header in trace.samples]
    if as_json:
        taken = {} if removed is None else {"removed": removed}
        console.print_json({"path": str(trace.path), "bytes": size, "samples": samples, **taken, **trace.attrs})
        return
    rows = [[sample["id"], sample["steps"], trace[number].attrs["text"]] for number, sample in enumerate(samples[:10])]
    left_out = f", the first 10 of {len(samples)}" if len(samples) > 10 else ""
    title = f"{trace.path}: {console.counted(len(samples), 'sample')}, {size / 1e6:.2f} MB{left_out}"
    if removed is not None:
        console.err.print(masked_line(removed), style="dim")
    console.out.print(console.table(title, ["id", "steps", "text"], rows))
    page = beside(trace.path, ".html")
    console.say_next(("sinks", trace.path), ("report", trace.path, "--out", page), ("view", trace.path))


def _removed(trace: Trace) -> dict[str, float | None] | None:
    """What an intervention took away, over all samples; None without one."""
    sums = [sample["removed"].sum("step") for sample in trace if "removed" in sample]
    if not sums:
        return None
    from sinkscope.decoding.protocols import MaskingStats

    return MaskingStats.from_sums({str(one["quantity"].item()): float(one) for one in sum(sums[1:], sums[0])}).to_dict()
