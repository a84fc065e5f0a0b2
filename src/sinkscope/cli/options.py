"""Options that several commands take: the model, prompts, and how to generate.

A command asks for `decoding: DecodingOptions` and is wrapped in `takes_groups`; every field of the class becomes an
option of the command. An option that is not given leaves the family's own setting.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

import typer

from sinkscope.cli.groups import OptionGroup
from sinkscope.decoding import Decoding, Denoising, default_settings
from sinkscope.decoding.generation import Settings
from sinkscope.errors import Caution, UserError
from sinkscope.families import Model, load_model
from sinkscope.trace import Prompt, read_prompts, text_prompt

ModelName = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="Folder, GGUF file, hub name, or a packaged model (see `sinkscope info`)."),
]
OtherVersions = Annotated[
    bool, typer.Option("--other-versions", help="Go on with what other versions of packages began.")
]
Dtype = Annotated[str | None, typer.Option(help="float32, bfloat16, float16; as stored if left out.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 ...; a GPU if there is one.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub model.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
PromptText = Annotated[str | None, typer.Option("--prompt", help="One prompt.")]
PromptFile = Annotated[
    str | None,
    typer.Option("--prompts", metavar="FILE", help="JSON lines with id and prompt or messages; - reads stdin."),
]
Chat = Annotated[
    bool, typer.Option("--chat", help="Put text prompts into the model's chat template, as a user's turn.")
]
Limit = Annotated[int | None, typer.Option(min=1, help="Take the first N prompts.")]
BatchSize = Annotated[int, typer.Option(min=1, help="Prompts run together.")]


@dataclass(frozen=True, kw_only=True)
class DecodingOptions(OptionGroup):
    """How to generate, as options. None leaves the family's own setting."""

    gen_length: Annotated[int | None, typer.Option(help="Masks to append; 0 fills the masks of the prompt.")] = None
    block_length: Annotated[int | None, typer.Option(help="Length of a block.")] = None
    steps: Annotated[int | None, typer.Option(help="Denoising steps over all blocks.")] = None
    schedule: Annotated[str | None, typer.Option(help="blocks (LLaDA) or dream (timesteps).")] = None
    confidence: Annotated[str | None, typer.Option(help="max-prob, margin, entropy or random.")] = None
    threshold: Annotated[float | None, typer.Option(help="Commit all positions at least this confident.")] = None
    cache: Annotated[str | None, typer.Option(help="prefix or dual block cache.")] = None
    cfg_scale: Annotated[float | None, typer.Option(help="Classifier-free guidance; 0 is off.")] = None
    max_new_tokens: Annotated[int | None, typer.Option(help="Tokens to generate (autoregressive models).")] = None
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None
    top_p: Annotated[float | None, typer.Option(help="Keep the likeliest tokens up to this probability.")] = None
    top_k: Annotated[int | None, typer.Option(help="Keep the k likeliest tokens.")] = None
    suppress: Annotated[list[int] | None, typer.Option(help="Token id never predicted; may be repeated.")] = None
    defer: Annotated[list[int] | None, typer.Option(help="Token id committed last; may be repeated.")] = None
    seed: Annotated[int | None, typer.Option(help="Seed of all noise.")] = None

    def settings_for(self, model: Model) -> Settings:
        """The family's settings with what was given on the command line."""
        default = default_settings(model)
        given = {name: value for name, value in vars(self).items() if value is not None and value != []}
        known = {field.name for field in fields(default)}
        foreign = sorted(given.keys() - known)
        if foreign:
            kind = "an autoregressive model" if isinstance(default, Decoding) else "a mask-filling model"
            raise UserError(f"{model.name} is {kind}, which has no {option_name(foreign[0])}; see `sinkscope info`")
        values = {**vars(default), **given}
        if isinstance(default, Decoding):
            return Decoding(**values)
        return Denoising(**_scaled(values, given))


def _scaled(values: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """A length of one's own does not need steps and blocks of one's own.

    One position a step, blocks no longer than it.
    """
    if "gen_length" not in given:
        return values
    length = values["gen_length"]
    if "steps" not in given:
        values["steps"] = None
    if "block_length" not in given and values["block_length"] is not None and length > 0:
        values["block_length"] = min(values["block_length"], length)
    return values


def prompts_from(text: str | None, file: str | None, limit: int | None, chat: bool) -> list[Prompt]:
    """The prompts of `--prompt` or `--prompts`, exactly one of which must be given.

    With `chat`, texts become messages.
    """
    if (text is None) == (file is None):
        raise UserError("give one of --prompt TEXT and --prompts FILE")
    prompts = text_prompt(text) if text is not None else read_prompts(str(file))
    return [_in_chat(prompt) if chat else prompt for prompt in prompts[:limit]]


def _in_chat(prompt: Prompt) -> Prompt:
    if not isinstance(prompt.content, str):
        return prompt
    return replace(prompt, content=[{"role": "user", "content": prompt.content}])


def caution_without_question(model: Model, prompts: Sequence[Prompt]) -> None:
    """Tell of texts that the model will not take for questions."""
    end = model.family.question_end
    texts = [one.content for one in prompts if isinstance(one.content, str)]
    unasked = [] if end is None else [text for text in texts if not text.rstrip().endswith(end)]
    if unasked:
        which = "the prompt does" if len(prompts) == 1 else f"{len(unasked)} of {len(prompts)} prompts do"
        warnings.warn(
            f"{which} not end with {end!r}, after which {model.name} answers; without it a text is gone on with, or "
            "ends (--chat adds it)",
            Caution,
            stacklevel=2,
        )


def option_name(field: str) -> str:
    """How a field of an option group is written on the command line."""
    return f"--{field.replace('_', '-')}"


def whole_numbers(option: str, text: str) -> tuple[int, ...]:
    """The numbers of "0,5,10". Raises `UserError` naming the option."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"{option} takes whole numbers with commas between them, got {text!r}") from None


def numbers(option: str, text: str) -> tuple[float, ...]:
    """The numbers of "1,0.5,0.25". Raises `UserError` naming the option."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"{option} takes numbers with commas between them, got {text!r}") from None


def names(option: str, text: str) -> tuple[str, ...]:
    """The names of "random,lowest". Raises `UserError` for an empty one."""
    found = tuple(part.strip() for part in text.split(","))
    if not all(found):
        raise UserError(f"{option} takes names with commas between them, got {text!r}")
    return found


def open_model(name: str, dtype: str | None, device: str | None, revision: str | None) -> Model:
    """Load a model as the options say."""
    return load_model(name, dtype=dtype, device=device, revision=revision)
