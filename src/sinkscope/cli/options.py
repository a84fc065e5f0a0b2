"""Options that several commands take: the model, prompts, how to generate, and where results are kept.

A command asks for `decoding: DecodingOptions`; every field of the class becomes an option of the command. An option
that is not given leaves the family's own setting.

What takes several values takes them with commas between them, or the option repeated: `--task copy,sort` is
`--task copy --task sort`. A comma that belongs to a value is written `\\,`.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

import typer

from sinkscope.addresses import reach
from sinkscope.cli.choices import CACHES, CONFIDENCE, DTYPES, REFRESH_RULES, SCHEDULES, STOPS, check_names, check_specs
from sinkscope.cli.groups import OptionGroup, option_name
from sinkscope.discovery import names_function
from sinkscope.errors import Caution, UserError
from sinkscope.seeds import MOST_SEED

if TYPE_CHECKING:
    from sinkscope.decoding.settings import Settings
    from sinkscope.families import Model
    from sinkscope.grids import Keeping
    from sinkscope.trace import Prompt


T = TypeVar("T")
MOST = 1_000_000
"""Examples, prompts or pictures of one command, and of them together in one batch."""


Names = list[str] | None
"""What an option takes that is repeated, or given several values with commas between them."""


def many(metavar: str, help_line: str) -> Any:
    """An option of several values; metavar: how they are written."""
    return typer.Option(metavar=metavar, help=help_line)


def positive(help_line: str) -> Any:
    """An option that takes a number from 1 on."""
    return typer.Option(min=1, max=MOST, help=help_line)


def seed_of(help_line: str) -> Any:
    """An option that takes a seed."""
    return typer.Option(min=0, max=MOST_SEED, help=help_line)


def limit_option(help_line: str) -> Any:
    """`--limit N`, of every command that runs prompts, examples or pictures; `--n N` is the same."""
    return typer.Option("--limit", "--n", min=1, max=MOST, metavar="N", help=help_line)


def _check_folders(given: T) -> T:
    """Raise `UserError` for models that can only be folders or files, and are not there."""
    for name in [given] if isinstance(given, str) else given if isinstance(given, list) else []:
        if names_function(name):
            raise UserError(f"{name}: a module of your own can be traced alone: sinkscope trace {name} --out DIR")
        if name.endswith(".py"):
            raise UserError(f"{name} is a file of Python code: name its function too, {name}:FUNCTION")
        if name.startswith((".", "~", "/")) and not Path(name).expanduser().exists():
            raise UserError(f"{name}: no such folder")
    return given


def _check_traced(given: str) -> str:
    """The same where a module of one's own is taken too."""
    return given if names_function(given) else _check_folders(given)


def _model_argument(metavar: str, help_line: str, check: Callable[[Any], Any] = _check_folders) -> Any:
    return typer.Argument(metavar=metavar, callback=check, help=help_line)


_PLACES = "Folder, GGUF file, hub name, or a packaged model (see `sinkscope info`)."
ModelName = Annotated[str, _model_argument("MODEL", _PLACES)]
ModelOrModule = Annotated[
    str, _model_argument("MODEL", f"{_PLACES[:-1]}; FILE.py:function for a module of your own.", _check_traced)
]
ModelNames = Annotated[list[str], _model_argument("MODEL...", "One or more models.")]
MaybeModel = Annotated[str | None, _model_argument("[MODEL]", "Folder, GGUF file, hub name or packaged model.")]


def _check_dtype(name: str | None) -> str | None:
    check_names("--dtype", [] if name is None else [name.removeprefix("torch.")], DTYPES)
    return name


OtherVersions = Annotated[
    bool, typer.Option("--other-versions", help="Go on with what other versions of packages began.")
]
Dtype = Annotated[str | None, typer.Option(callback=_check_dtype, help=f"{', '.join(DTYPES)}; as stored if left out.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 ...; a GPU if there is one.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a hub model.")]
MaskTokenId = Annotated[int | None, typer.Option(min=0, help="Mask token of a diffusion model whose files name none.")]
AttentionBlockLength = Annotated[
    int | None, typer.Option(min=1, help="Tokens of a block of a block-causal model's attention.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


Examples = Annotated[int, limit_option("Examples of each task.")]
BatchSize = Annotated[int, positive("Prompts, examples or pictures run together.")]
Seed = Annotated[int, seed_of("Seed of the examples.")]


@dataclass(frozen=True, kw_only=True)
class OpeningOptions(OptionGroup):
    """How a model is loaded."""

    panel: ClassVar[str] = "How models are loaded"

    dtype: Dtype = None
    device: Device = None
    revision: Revision = None
    mask_token_id: MaskTokenId = None
    attention_block_length: AttentionBlockLength = None

    def loading(self) -> dict[str, Any]:
        """What `load_model` is given."""
        given = dict(vars(self))
        return {"block_length": given.pop("attention_block_length"), **given}


@dataclass(frozen=True, kw_only=True)
class SpreadOptions(OpeningOptions):
    """How models are loaded that may be spread over several GPUs."""

    device_map: Annotated[
        str | None, typer.Option(help="Spread each model over the GPUs that there are: auto, balanced ...")
    ] = None


@dataclass(frozen=True, kw_only=True)
class DecodingOptions(OptionGroup):
    """How to generate, as options. None leaves the family's own setting."""

    panel: ClassVar[str] = "How to generate"

    gen_length: Annotated[int | None, typer.Option(help="Masks to append; 0 fills those of the prompt.")] = None
    block_length: Annotated[int | None, typer.Option(help="Length of a block.")] = None
    steps: Annotated[int | None, typer.Option(help="Denoising steps over all blocks; 0 only reads.")] = None
    schedule: Annotated[str | None, typer.Option(help=f"{', '.join(SCHEDULES)}: LLaDA, SDAR, dllm, Dream.")] = None
    confidence: Annotated[str | None, typer.Option(help=f"{', '.join(CONFIDENCE)}.")] = None
    stochastic_transfer: Annotated[bool | None, typer.Option(help="Draw how many positions a step commits.")] = None
    alg_temp: Annotated[float | None, typer.Option(help="Draw positions at this temperature (Dream).")] = None
    threshold: Annotated[float | None, typer.Option(help="Commit all positions at least this confident.")] = None
    factor: Annotated[float | None, typer.Option(help="Threshold that rises with the number committed.")] = None
    cache: Annotated[str | None, typer.Option(help=f"{', '.join((*CACHES, *REFRESH_RULES))}: which keys are kept.")] = (
        None
    )
    sub_block_length: Annotated[int | None, typer.Option(help="Length of the parts of a block.")] = None
    stop: Annotated[str | None, typer.Option(help=f"{' or '.join(STOPS)}: when a text has ended.")] = None
    cfg_scale: Annotated[float | None, typer.Option(help="Classifier-free guidance; 0 is off.")] = None
    cfg_keep_tokens: Annotated[Names, many("ID,...", "Token ids of the prompt left in without it.")] = None
    entropy_bound: Annotated[float | None, typer.Option(help="Nats up to which drawn tokens are kept.")] = None
    t_max: Annotated[float | None, typer.Option(help="Temperature of a canvas' first step.")] = None
    t_min: Annotated[float | None, typer.Option(help="Temperature towards which it falls.")] = None
    stability_threshold: Annotated[int | None, typer.Option(help="Steps without change that end a canvas.")] = None
    confidence_threshold: Annotated[float | None, typer.Option(help="Mean entropy below which it may end.")] = None
    max_new_tokens: Annotated[int | None, typer.Option(help="Tokens to generate (autoregressive models).")] = None
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None
    top_p: Annotated[float | None, typer.Option(help="Keep the likeliest tokens up to this probability.")] = None
    top_k: Annotated[int | None, typer.Option(help="Keep the k likeliest tokens.")] = None
    suppress: Annotated[Names, many("ID,...", "Token ids never predicted.")] = None
    defer: Annotated[Names, many("ID,...", "Token ids committed last.")] = None
    seed: Annotated[int | None, seed_of("Seed of all noise.")] = None

    def __post_init__(self) -> None:
        named = {"schedule": SCHEDULES, "confidence": CONFIDENCE, "stop": STOPS}
        for name, known in named.items():
            check_names(name, filter(None, [vars(self)[name]]), known)
        check_specs("cache", filter(None, [self.cache]), (*CACHES, *REFRESH_RULES))
        _ = self.given

    @property
    def given(self) -> dict[str, Any]:
        """The fields of settings that are named."""
        given = {name: value for name, value in vars(self).items() if value is not None and value != []}
        lists = [name for name in ("suppress", "defer", "cfg_keep_tokens") if name in given]
        return {**given, **{name: whole_numbers(option_name(name), given[name]) for name in lists}}

    def settings_for(self, model: Model) -> Settings:
        """The family's settings with what was given on the command line."""
        from sinkscope.decoding import settings_with

        return settings_with(model, self.given)


@dataclass(frozen=True, kw_only=True)
class PromptOptions(OptionGroup):
    """What the model is given."""

    panel: ClassVar[str] = "Prompts"

    prompt: Annotated[str | None, typer.Option(help="One prompt.")] = None
    prompts: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="JSON lines with id and prompt or messages; - reads stdin; a trace: its texts."
        ),
    ] = None
    chat: Annotated[
        bool, typer.Option("--chat", help="Put text prompts into the model's chat template, as a user's turn.")
    ] = False
    limit: Annotated[int | None, limit_option("Take the first N prompts.")] = None
    batch_size: BatchSize = 1

    def read(self) -> list[Prompt]:
        """The prompts of `--prompt` or `--prompts`, exactly one of which must be given."""
        if (self.prompt is None) == (self.prompts is None):
            raise UserError("give one of --prompt TEXT and --prompts FILE")
        if self.prompts not in (None, "-") and not Path(str(self.prompts)).exists():
            raise UserError(f"can't read the prompts {self.prompts}: there is no such file")
        from sinkscope.trace import read_prompts, text_prompt

        given = text_prompt(self.prompt) if self.prompt is not None else read_prompts(str(self.prompts))
        return [self._in_chat(one) for one in given[: self.limit]]

    def _in_chat(self, prompt: Prompt) -> Prompt:
        if not (self.chat and isinstance(prompt.content, str)):
            return prompt
        return replace(prompt, content=[{"role": "user", "content": prompt.content}])


def caution_without_question(model: Model, prompts: Sequence[Prompt]) -> None:
    """Warn of texts that do not end as the model's questions do."""
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

    Raises `UserError` naming the option for an empty value, one that is no `wanted`, and one that stands twice.
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
            got = ",".join(given or ())
            raise UserError(f"{option} takes {wanted} with commas between them, got {got!r}") from None
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


@contextmanager
def told_at_interrupt(kept: Callable[[], str]) -> Iterator[None]:
    """An interrupt inside ends the command with a line that says what was kept."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise type(interrupt)(kept()) from None


@dataclass(frozen=True, kw_only=True)
class KeepingOptions(OptionGroup):
    """Where cells are kept, and whether those there are taken over."""

    panel: ClassVar[str] = "Where results are kept"

    out: Annotated[Path | None, typer.Option(help="Folder or address that keeps finished cells, and the tables.")] = (
        None
    )
    resume: Annotated[bool, typer.Option("--resume", help="Take over the cells that the folder holds.")] = False
    other_versions: OtherVersions = False

    def __post_init__(self) -> None:
        if self.resume and self.out is None:
            raise UserError("--resume needs --out, the folder that holds the cells")
        if self.out is not None:
            reach(self.out)  # before models are loaded for nothing

    def kept(self) -> Keeping:
        """For what runs a grid. Raises `UserError` for a folder that can't keep it, before models are loaded."""
        from sinkscope.grids import Keeping
        from sinkscope.grids.store import check_folder

        if self.out is not None:
            check_folder(self.out, resume=self.resume)
        return Keeping(out=self.out, resume=self.resume, other_versions=self.other_versions)

    def told_at_interrupt(self) -> AbstractContextManager[None]:
        """An interrupt ends the command with a line that says what was kept."""
        if self.out is None:
            return told_at_interrupt(lambda: "nothing was kept: --out FOLDER keeps cells as they end")
        return told_at_interrupt(lambda: f"cells that had ended are kept in {self.out}: go on with --resume")


def given_fields(given: Sequence[str] | None, *, option: str = "--set", **options: Any) -> dict[str, Any]:
    """Fields of a recipe: those that options of their own set, and those of `--set FIELD=JSON`, by name.

    Raises `UserError` for what is no such field, and for one that is given both ways.
    """
    changes = {name: value for name, value in options.items() if value is not None}
    for text in given or ():
        name, sign, value = text.partition("=")
        if not sign:
            raise UserError(f"{option} takes FIELD=VALUE, got {text!r}")
        if name in options and options[name] is not None:
            raise UserError(f"{name} was given twice, as an option and by {option}")
        try:
            changes[name] = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise UserError(
                f"{option} {name} takes JSON, such as 0.02, [32, 64] or '\"text\"', got {value!r}"
            ) from error
    return changes


def require(work: str, **extras: str) -> None:
    """Raise `UserError` for a missing package, by the extra that installs it."""
    for package, extra in extras.items():
        if find_spec(package) is None:
            raise UserError(f"{work} needs more packages; run: pip install 'sinkscope[{extra}]'")
