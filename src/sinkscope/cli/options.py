"""Options that several commands take: the model, prompts, and how to generate.

A command asks for `decoding: DecodingOptions`; every field of the class becomes an option of the command. An option
that is not given leaves the family's own setting.

What takes several values takes them with commas between them, or the option repeated: `--task copy,sort` is
`--task copy --task sort`. A comma that belongs to a value is written `\\,`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

import typer

from sinkscope.cli.choices import CACHES, CONFIDENCE, DTYPES, SCHEDULES, check_names
from sinkscope.cli.groups import OptionGroup, option_name
from sinkscope.errors import Caution, UserError
from sinkscope.seeds import MOST_SEED

if TYPE_CHECKING:
    from sinkscope.decoding.settings import Settings
    from sinkscope.families import Model
    from sinkscope.trace import Prompt

T = TypeVar("T")
MOST = 1_000_000
"""Examples, prompts or pictures of one command, and of them together in one batch."""


def _check_folders(given: T) -> T:
    """Raise `UserError` for models that can only be folders or files, and are not there."""
    for name in [given] if isinstance(given, str) else given if isinstance(given, list) else []:
        if name.startswith((".", "~", "/")) and not Path(name).expanduser().exists():
            raise UserError(f"{name}: no such folder")
    return given


ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        callback=_check_folders,
        help="Folder, GGUF file, hub name, or a packaged model (see `sinkscope info`).",
    ),
]
ModelNames = Annotated[
    list[str], typer.Argument(metavar="MODEL...", callback=_check_folders, help="One or more models.")
]
MaybeModel = Annotated[
    str | None,
    typer.Argument(metavar="[MODEL]", callback=_check_folders, help="Folder, GGUF file, hub name or packaged model."),
]


def _check_dtype(name: str | None) -> str | None:
    check_names("--dtype", [] if name is None else [name.removeprefix("torch.")], DTYPES)
    return name


OtherVersions = Annotated[
    bool, typer.Option("--other-versions", help="Go on with what other versions of packages began.")
]
Dtype = Annotated[str | None, typer.Option(callback=_check_dtype, help=f"{', '.join(DTYPES)}; as stored if left out.")]
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


def limit_option(help_line: str) -> Any:
    """`--limit N`, of every command that runs prompts, examples or pictures; `--n N` is the same."""
    return typer.Option("--limit", "--n", min=1, max=MOST, metavar="N", help=help_line)


Limit = Annotated[int | None, limit_option("Take the first N prompts.")]
Examples = Annotated[int, limit_option("Examples of each task.")]
BatchSize = Annotated[int, typer.Option(min=1, max=MOST, help="Prompts, examples or pictures run together.")]
Seed = Annotated[int, typer.Option(min=0, max=MOST_SEED, help="Seed of the examples.")]


@dataclass(frozen=True, kw_only=True)
class DecodingOptions(OptionGroup):
    """How to generate, as options. None leaves the family's own setting."""

    panel: ClassVar[str] = "How to generate"

    gen_length: Annotated[int | None, typer.Option(help="Masks to append; 0 fills the masks of the prompt.")] = None
    block_length: Annotated[int | None, typer.Option(help="Length of a block.")] = None
    steps: Annotated[int | None, typer.Option(help="Denoising steps over all blocks.")] = None
    schedule: Annotated[str | None, typer.Option(help="blocks (LLaDA) or dream (timesteps).")] = None
    confidence: Annotated[str | None, typer.Option(help=f"{', '.join(CONFIDENCE)}.")] = None
    threshold: Annotated[float | None, typer.Option(help="Commit all positions at least this confident.")] = None
    cache: Annotated[str | None, typer.Option(help="prefix or dual block cache.")] = None
    cfg_scale: Annotated[float | None, typer.Option(help="Classifier-free guidance; 0 is off.")] = None
    max_new_tokens: Annotated[int | None, typer.Option(help="Tokens to generate (autoregressive models).")] = None
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None
    top_p: Annotated[float | None, typer.Option(help="Keep the likeliest tokens up to this probability.")] = None
    top_k: Annotated[int | None, typer.Option(help="Keep the k likeliest tokens.")] = None
    suppress: Annotated[list[str] | None, typer.Option(metavar="ID,...", help="Token ids never predicted.")] = None
    defer: Annotated[list[str] | None, typer.Option(metavar="ID,...", help="Token ids committed last.")] = None
    seed: Annotated[int | None, typer.Option(min=0, max=MOST_SEED, help="Seed of all noise.")] = None

    def __post_init__(self) -> None:
        for what, name, known in (
            ("schedule", self.schedule, SCHEDULES),
            ("confidence", self.confidence, CONFIDENCE),
            ("cache", self.cache, CACHES),
        ):
            check_names(what, [] if name is None else [name], known)
        _ = self._given

    @property
    def _given(self) -> dict[str, Any]:
        given = {name: value for name, value in vars(self).items() if value is not None and value != []}
        lists: dict[str, Any] = {
            name: whole_numbers(option_name(name), given[name]) for name in ("suppress", "defer") if name in given
        }
        return {**given, **lists}

    def settings_for(self, model: Model) -> Settings:
        """The family's settings with what was given on the command line."""
        from sinkscope.decoding import Decoding, Denoising, default_settings

        default, given = default_settings(model), self._given
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
    if file not in (None, "-") and not Path(str(file)).exists():
        raise UserError(f"can't read the prompts {file}: there is no such file")
    from sinkscope.trace import read_prompts, text_prompt

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


def several(option: str, given: Sequence[str] | None, parse: Callable[[str], T], wanted: str) -> tuple[T, ...]:
    """All values of an option, with commas between them or repeated; none where it was left out.

    Raises `UserError` naming the option for an empty value, one that is no `wanted`, and one that is named twice.
    """
    found: list[T] = []
    for text in (part.strip().replace("\\,", ",") for one in given or () for part in _COMMA.split(one)):
        try:
            if not text:
                raise ValueError
            value = parse(text)
        except (ValueError, OverflowError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(
                f"{option} takes {wanted} with commas between them, got {','.join(given or ())!r}"
            ) from None
        if value in found:
            raise UserError(f"{option} names {text} twice")
        found.append(value)
    return tuple(found)


_COMMA = re.compile(r"(?<!\\),")


def names(option: str, given: Sequence[str] | None) -> tuple[str, ...]:
    """The names of "random,lowest"."""
    return several(option, given, str, "names")


def whole_numbers(option: str, given: Sequence[str] | None) -> tuple[int, ...]:
    """The numbers of "0,5,10"."""
    return several(option, given, _whole, "whole numbers")


def numbers(option: str, given: Sequence[str] | None) -> tuple[float, ...]:
    """The numbers of "1,0.5,0.25"."""
    return several(option, given, finite, "numbers")


def _whole(text: str) -> int:
    if abs(int(text)) > MOST_SEED:
        raise ValueError
    return int(text)


def finite(text: str) -> float:
    """A number that is not infinite. Raises `ValueError` for what is none."""
    if not isfinite(float(text)):
        raise ValueError
    return float(text)


def open_model(name: str, dtype: str | None, device: str | None, revision: str | None) -> Model:
    """Load a model as the options say."""
    from sinkscope.families import load_model

    return load_model(name, dtype=dtype, device=device, revision=revision)
