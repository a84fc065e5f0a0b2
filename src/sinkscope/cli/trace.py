"""`sinkscope trace`: record what attention each token receives while a model generates."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from sinkscope.cli import console
from sinkscope.cli.groups import takes_groups
from sinkscope.cli.masking import OneMasking, masked_line
from sinkscope.cli.options import (
    BatchSize,
    Chat,
    DecodingOptions,
    Device,
    Dtype,
    Json,
    Limit,
    ModelName,
    OtherVersions,
    PromptFile,
    PromptText,
    Revision,
    caution_without_question,
    open_model,
    prompts_from,
    whole_numbers,
)
from sinkscope.decoding.intervening import Removed
from sinkscope.errors import UserError
from sinkscope.trace import Maps, Progress, Recording, Trace, check_output, record

Precision = Annotated[
    Literal["rounded", "float32"],
    typer.Option(help="rounded: large arrays lose bits that no rule could tell; float32: none does."),
]


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("trace")(takes_groups(_trace))


def _trace(
    model_name: ModelName,
    decoding: DecodingOptions,
    masking: OneMasking,
    out: Annotated[Path, typer.Option(help="Folder of the trace, a zarr store.")],
    prompt: PromptText = None,
    prompts: PromptFile = None,
    chat: Chat = False,
    limit: Limit = None,
    batch_size: BatchSize = 1,
    precision: Precision = "rounded",
    by_group: Annotated[
        Literal["mean", "heads", "none"], typer.Option(help="By group of queries: mean over heads, every head, or not.")
    ] = "mean",
    norms: Annotated[bool, typer.Option("--norms", help="Also keep key and value norms.")] = False,
    entropy: Annotated[bool, typer.Option("--entropy", help="Also keep each query's attention entropy.")] = False,
    final: Annotated[bool, typer.Option(help="Pass the finished sequence once more whole.")] = True,
    map_steps: Annotated[str | None, typer.Option(metavar="0,5,...", help="Steps whose full maps are kept.")] = None,
    map_layers: Annotated[str | None, typer.Option(metavar="0,5,...", help="Layers of those maps; all.")] = None,
    map_heads: Annotated[str | None, typer.Option(metavar="0,5,...", help="Heads of those maps; all.")] = None,
    kernel: Annotated[str | None, typer.Option(help="one-pass or two-pass; the faster one.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted trace.")] = False,
    other_versions: OtherVersions = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing trace.")] = False,
    dtype: Dtype = None,
    device: Device = None,
    revision: Revision = None,
    as_json: Json = False,
) -> None:
    """Record received attention for every step, layer, head and token."""
    _check_options(out, resume, overwrite)
    given = prompts_from(prompt, prompts, limit, chat)
    intervention = masking.intervention()
    model = open_model(model_name, dtype, device, revision)
    recording = Recording(
        precision=precision,
        by_group=None if by_group == "none" else by_group,
        norms=norms,
        entropy=entropy,
        final=final,
        maps=_maps(map_steps, map_layers, map_heads, model.shape.layers, model.shape.heads),
        kernel=kernel,
    )
    settings = decoding.settings_for(model)
    with console.progress(as_json) as bar:
        samples = bar.add_task("samples", total=len(given))
        steps = bar.add_task("steps", total=None)

        def observe(now: Progress) -> None:
            bar.update(samples, completed=now.samples_done)
            bar.update(steps, completed=now.step, total=now.most_steps)

        trace = record(
            model, given, settings, out=out, recording=recording, batch_size=batch_size, resume=resume,
            other_versions=other_versions, overwrite=overwrite, observer=observe, intervention=intervention,
        )  # fmt: skip
    caution_without_question(model, given)  # after all mistakes, which are one line
    _report(trace, as_json)


def _check_options(out: Path, resume: bool, overwrite: bool) -> None:
    """Before a model is loaded for nothing."""
    if resume and overwrite:
        raise UserError("give one of --resume and --overwrite, not both")
    check_output(out, resume=resume, overwrite=overwrite)


def _maps(steps: str | None, layers: str | None, heads: str | None, all_layers: int, all_heads: int) -> Maps | None:
    if steps is None:
        if layers is not None or heads is not None:
            raise UserError("--map-layers and --map-heads choose among the maps of --map-steps; give --map-steps too")
        return None
    return Maps(
        steps=whole_numbers("--map-steps", steps),
        layers=tuple(range(all_layers)) if layers is None else whole_numbers("--map-layers", layers),
        heads=tuple(range(all_heads)) if heads is None else whole_numbers("--map-heads", heads),
    )


def _report(trace: Trace, as_json: bool) -> None:
    size = sum(file.stat().st_size for file in trace.path.rglob("*") if file.is_file())
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
    console.say_next("sinkscope", "sinks", trace.path)


def _removed(trace: Trace) -> dict[str, float | None] | None:
    """What an intervention took away, over all samples; None without one."""
    sums = [sample["removed"].sum("step") for sample in trace if "removed" in sample]
    if not sums:
        return None
    return Removed.from_sums({str(one["quantity"].item()): float(one) for one in sum(sums[1:], sums[0])}).to_dict()
