"""`sinkscope generate`: run a model's decoding loop on prompts and print what it writes."""

from dataclasses import asdict
from typing import Any

import typer

from sinkscope.cli import console
from sinkscope.cli.groups import add_command
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
    PromptFile,
    PromptText,
    Revision,
    caution_without_question,
    open_model,
    prompts_from,
)
from sinkscope.cli.origin import origin


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    add_command(app, "generate", _generate)


def _generate(
    model_name: ModelName,
    decoding: DecodingOptions,
    masking: OneMasking,
    prompt: PromptText = None,
    prompts: PromptFile = None,
    chat: Chat = False,
    limit: Limit = None,
    batch_size: BatchSize = 1,
    dtype: Dtype = None,
    device: Device = None,
    revision: Revision = None,
    as_json: Json = False,
) -> None:
    """Generate from prompts, with the model's own decoding loop."""
    from sinkscope.decoding import Run, encode_prompts, generate
    from sinkscope.decoding.generation import warn_beyond_training

    given = prompts_from(prompt, prompts, limit, chat)
    intervention = masking.intervention()
    model = open_model(model_name, dtype, device, revision)
    settings = decoding.settings_for(model)
    every = [encode_prompts(model, [one.content])[0] for one in given]
    run = Run(model, settings, intervention)
    for tokens in every:
        run.check([tokens])
    warn_beyond_training(model, every, settings)
    caution_without_question(model, given)
    results: list[dict[str, Any]] = []
    with console.progress(as_json) as bar:
        for start in range(0, len(given), batch_size):
            batch = given[start : start + batch_size]
            encoded = every[start : start + batch_size]
            task = bar.add_task(f"prompt {start + 1} of {len(given)}", total=run.max_steps(encoded))
            done = generate(
                model,
                encoded,
                settings,
                intervention=intervention,
                on_step=lambda _, task=task: bar.advance(task),  # type: ignore[misc]
            )
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
        console.print_json({**origin(model), "settings": asdict(settings), **masked, "results": results})
        return
    _print(results)


def _print(results: list[dict[str, Any]]) -> None:
    """Texts for people, each under its id where there are several."""
    for result in results:
        if len(results) > 1:
            console.out.rule(str(result["id"]), align="left")
        console.say(result["text"] if result["text"] is not None else " ".join(map(str, result["sequence"])))
        if "removed" in result:
            console.err.print(masked_line(result["removed"]), style="dim")
