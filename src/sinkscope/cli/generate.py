"""`sinkscope info` and `sinkscope generate`: what a model is and how it would be decoded, and what it writes."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sinkscope.cli import console
from sinkscope.cli.groups import add_command
from sinkscope.cli.keys_options import OneMasking, masked_line
from sinkscope.cli.live import Live, live_view
from sinkscope.cli.options import (
    AttentionBlockLength,
    DecodingOptions,
    Dtype,
    Json,
    MaskTokenId,
    MaybeModel,
    ModelName,
    OpeningOptions,
    PromptOptions,
    Revision,
    caution_without_question,
    positive,
)
from sinkscope.cli.trace import RecordingOptions
from sinkscope.errors import UserError

if TYPE_CHECKING:
    from rich.progress import TaskID

    from sinkscope.decoding import Step
    from sinkscope.families import Model

_SHOWN = 12
"""Entries of a list that a table shows."""
_PROMPT = 64
_NAMES = {"file_bytes": "files together", "weight_bytes": "weights in memory"}
_UNITS = {"kB": 10**3, "MB": 10**6, "GB": 10**9}


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    add_command(app, "info", _info)
    add_command(app, "generate", _generate)


def _info(
    decoding: DecodingOptions,
    recorded: RecordingOptions,
    model_name: MaybeModel = None,
    prompt_length: Annotated[
        int | None, positive(f"Tokens of a prompt, for the size of a trace; {_PROMPT} if left out.")
    ] = None,
    dtype: Dtype = None,
    revision: Revision = None,
    mask_token_id: MaskTokenId = None,
    attention_block_length: AttentionBlockLength = None,
    as_json: Json = False,
) -> None:
    """Tell what a model is and what it takes, before its weights are loaded or fetched. Without MODEL: the families and
    packaged models there are."""
    if model_name is None:
        _list(as_json)
        return
    from sinkscope.families.describe import describe, examine, without_weights

    prepared = examine(model_name, revision=revision, mask_token_id=mask_token_id, block_length=attention_block_length)
    found, model = asdict(describe(prepared, dtype)), without_weights(prepared)
    try:
        trace = _trace_size(model, prompt_length, decoding, recorded)
    except UserError:
        if prompt_length is not None or (decoding, recorded) != (DecodingOptions(), RecordingOptions()):
            raise
        trace = None  # the family's usual length is longer than this model's context
    if as_json:
        console.print_json({**found, "folder": str(found["folder"]), "trace": trace})
        return
    rows = [
        [_NAMES.get(name, name.replace("_", " ")), _size(value) if name in _NAMES else _told(value)]
        for name, value in found.items()
        if value not in (None, (), {}) and (name not in _NAMES or value)
    ]
    rows += [] if trace is None else [["trace", _told_trace(trace)]]
    console.out.print(console.table(str(found["name"]), ["what", "value"], rows))


def _trace_size(
    model: Model, prompt_length: int | None, decoding: DecodingOptions, recorded: RecordingOptions
) -> dict[str, int]:
    """Of one sample, at most: bytes before compression, and of the steps that wait in memory."""
    from sinkscope.trace import planned_layout

    length = _PROMPT if prompt_length is None else prompt_length
    layout = planned_layout(model, length, decoding.settings_for(model), recorded.recording())
    return {
        "prompt_length": length, "positions": layout.positions, "steps": layout.max_steps, "bytes": layout.bytes,
        "memory_bytes": layout.waiting_bytes,
    }  # fmt: skip


def _told_trace(trace: dict[str, int]) -> str:
    return (
        f"a prompt of {trace['prompt_length']} tokens: {trace['positions']} positions, {trace['steps']} steps, at most "
        f"{_size(trace['bytes'])} a sample before compression, {_size(trace['memory_bytes'])} of memory"
    )


def _size(count: int) -> str:
    unit = next((unit for unit in ("GB", "MB", "kB") if count >= _UNITS[unit]), None)
    return f"{count} bytes" if unit is None else f"{count / _UNITS[unit]:.3g} {unit}"


def _list(as_json: bool) -> None:
    from sinkscope.families import PACKAGED, adapters

    families = {adapter.name: adapter.summary for adapter in adapters()}
    packaged = {name: {"summary": one.summary, "install": one.install} for name, one in PACKAGED.items()}
    if as_json:
        console.print_json({"families": families, "packaged": packaged})
        return
    console.out.print(console.table("Families", ["name", "what it loads"], list(families.items())))
    rows = [[name, one.summary, one.install] for name, one in PACKAGED.items()]
    console.out.print(console.table("Packaged models", ["name", "what it is", "if it is missing, run"], rows))


def _told(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if value >= 10_000 else str(value)
    if isinstance(value, dict):
        return _listed([f"{key}={one!r}" if isinstance(key, str) else f"{key} {one}" for key, one in value.items()])
    if isinstance(value, tuple):
        return _listed([str(one) for one in value])
    return str(value)


def _listed(parts: list[str]) -> str:
    """The first few, and how many there are. `--json` has them all."""
    more = f" ... ({len(parts):,} in all)" if len(parts) > _SHOWN else ""
    return ", ".join(parts[:_SHOWN]) + more


def _generate(
    model_name: ModelName,
    decoding: DecodingOptions,
    masking: OneMasking,
    asked: PromptOptions,
    opening: OpeningOptions,
    live: Live = False,
    as_json: Json = False,
) -> None:
    """Generate from prompts, with the model's own decoding loop."""
    from sinkscope.decoding import Run, encode_prompts, generate
    from sinkscope.decoding.generation import warn_beyond_training
    from sinkscope.families import load_model

    given = asked.read()
    intervention = masking.intervention()
    model = load_model(model_name, **opening.loading())
    settings = decoding.settings_for(model)
    every = [encode_prompts(model, [one.content])[0] for one in given]
    run = Run(model, settings, intervention)
    for tokens in every:
        run.check([tokens])
    warn_beyond_training(model, every, settings)
    caution_without_question(model, given)
    results: list[dict[str, Any]] = []
    shown = live and not as_json
    with live_view(model, shown=shown) as view, console.progress(as_json or live) as bar:
        for start in range(0, len(given), asked.batch_size):
            batch, encoded = given[start : start + asked.batch_size], every[start : start + asked.batch_size]
            task = bar.add_task(f"prompt {start + 1} of {len(given)}", total=run.max_steps(encoded))

            def look(step: Step, task: TaskID = task) -> None:
                view.look(step)
                bar.advance(task)

            view.begin()
            done = generate(model, encoded, settings, intervention=intervention, on_step=look)
            bar.remove_task(task)
            for row, (one, tokens) in enumerate(zip(batch, encoded, strict=True)):
                sequence = done.sequences[row, done.prompt_length - len(tokens) :].tolist()
                text = None if done.text is None else done.text[row]
                passes = done.forward_passes
                result: dict[str, Any] = {"id": one.id, "text": text, "sequence": sequence, "forward_passes": passes}
                if done.removed is not None:
                    result["removed"] = done.removed.row(row).to_dict()
                results.append(result)
    if as_json:
        masked = {} if intervention is None else {"intervention": intervention.to_dict()}
        told = {**console.origin(model), "settings": asdict(settings), **masked, "results": results}
        console.print_json({**told, "speed": view.speed.to_dict()})
        return
    _print(results)
    if console.err.is_terminal:
        console.err.print(view.speed.told, style="dim")


def _print(results: list[dict[str, Any]]) -> None:
    """Texts for people, each under its id where there are several."""
    for result in results:
        if len(results) > 1:
            console.out.rule(str(result["id"]), align="left")
        console.say(result["text"] if result["text"] is not None else " ".join(map(str, result["sequence"])))
        if "removed" in result:
            console.err.print(masked_line(result["removed"]), style="dim")
