"""`generate`: run a decoding loop to its end and hand back sequences and text."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from sinkscope.decoding.autoregressive import check_decoding, decode, default_decoding
from sinkscope.decoding.canvas import Prompts, encode_prompts
from sinkscope.decoding.compressing import Compression, prefix_of
from sinkscope.decoding.denoising import check_denoising, default_denoising, denoise, most_passes
from sinkscope.decoding.intervening import Intervention, Removed, warn_if_nothing
from sinkscope.decoding.settings import Decoding, Denoising
from sinkscope.decoding.step import Step
from sinkscope.decoding.words import decode_text
from sinkscope.errors import TrainedLengthWarning
from sinkscope.families import Model

Settings = Denoising | Decoding


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What came out. Rows are left-padded to the longest prompt.

    Autoregressive rows that ended early are padded on the right.
    """

    sequences: torch.Tensor  # (batch, position) token ids, prompt and generation
    prompt_length: int  # columns that hold the (padded) prompts
    text: list[str] | None  # what was generated up to the end of text, without special tokens; None without a tokenizer
    forward_passes: int
    removed: Removed | None  # what an intervention took away, for each row, summed over its steps; None without one
    history: list[torch.Tensor] | None  # the canvas after each step, (batch, position), if asked for


def generate(
    model: Model,
    prompts: Prompts,
    settings: Settings | None = None,
    *,
    intervention: Intervention | None = None,
    compression: Compression | None = None,
    history: bool = False,
    on_step: Callable[[Step], None] | None = None,
) -> Generation:
    """Generate from prompts with the family's decoding loop.

    settings: `Denoising` for diffusion and masked models, `Decoding` for autoregressive ones; None takes the family's
        own.
    intervention: what is cut from attention meanwhile, `MaskSinks(5)` for example; None or `MaskSinks(0)` is the plain
        run, bit for bit.
    compression: which keys the cache of an autoregressive model or the block cache of a diffusion model drops,
        `Compress("key-norm", 0.5)` for example, or a `Prefix` of an autoregressive model after which the prompts go on;
        its tokens then stand at the head of every sequence.
    history: keep the canvas after each step. on_step: called with each `Step`, for progress bars.
    Raises `UserError` before the first pass; warns with `TrainedLengthWarning`, once, where texts grow longer than
    those the model was trained on, and with `NothingMaskedWarning` where an intervention took nothing away.
    """
    settings = settings or default_settings(model)
    prefix = prefix_of(compression)
    encoded = encode_prompts(model, prompts, continuing=bool(prefix))
    steps = run(model, encoded, settings, intervention=intervention, compression=compression)  # checks everything
    warn_beyond_training(model, [[*prefix, *max(encoded, key=len)]], settings)
    canvases: list[torch.Tensor] = []
    last: Step | None = None
    removed: Removed | None = None
    for last in steps:
        removed = last.add_to(removed)
        if history:
            canvases.append(last.canvas)
        if on_step is not None:
            on_step(last)
    assert last is not None
    warn_if_nothing(removed)
    longest = len(prefix) + max(map(len, encoded))
    return Generation(
        sequences=last.canvas,
        prompt_length=longest,
        text=read_text(model, last.canvas, longest),
        forward_passes=last.index + 1,
        removed=removed,
        history=canvases if history else None,
    )


def run(
    model: Model,
    prompts: Prompts,
    settings: Settings | None,
    *,
    seeds: Sequence[int] | None = None,
    intervention: Intervention | None = None,
    compression: Compression | None = None,
) -> Iterator[Step]:
    """The decoding loop that fits the model, with settings that must fit it too."""
    settings = settings or default_settings(model)
    if isinstance(settings, Denoising):
        return denoise(model, prompts, settings, seeds=seeds, intervention=intervention, compression=compression)
    return decode(model, prompts, settings, seeds=seeds, intervention=intervention, compression=compression)


def default_settings(model: Model) -> Settings:
    """The family's own way to decode."""
    return default_denoising(model) if model.family.bidirectional else default_decoding(model)


def check_prompts(
    model: Model,
    encoded: Sequence[Sequence[int]],
    settings: Settings,
    intervention: Intervention | None = None,
    compression: Compression | None = None,
) -> None:
    """Raise `UserError` for prompts, given as token ids, that don't go with the model and the settings."""
    if isinstance(settings, Denoising):
        check_denoising(model, encoded, settings, intervention, compression)
    else:
        check_decoding(model, encoded, settings, intervention, compression)


def warn_beyond_training(model: Model, encoded: Sequence[Sequence[int]], settings: Settings) -> None:
    """Warn where the longest prompt and what is generated exceed the texts of the model's training.

    The warning, a `TrainedLengthWarning`, names the line that called the caller.
    """
    new = settings.gen_length if isinstance(settings, Denoising) else settings.max_new_tokens
    trained, longest = model.family.trained_length, max(map(len, encoded))
    if trained is not None and longest + new > trained:
        message = (
            f"{model.name} was trained on texts of at most {trained} tokens; a prompt of {longest} and {new} new ones "
            f"make {longest + new}, and what stands after the first {trained} may mean nothing"
        )
        warnings.warn(message, TrainedLengthWarning, stacklevel=3)


def most_steps(model: Model, encoded: Sequence[Sequence[int]], settings: Settings) -> int:
    """The most steps that generating from these prompts together can take."""
    if isinstance(settings, Decoding):
        return settings.max_new_tokens
    mask = model.family.mask_token_id
    return most_passes(settings, max(sum(token == mask for token in tokens) for tokens in encoded))


def read_text(model: Model, sequences: torch.Tensor, prompt_length: int) -> list[str] | None:
    """The generated part as text; the whole where masks of the prompt were filled."""
    if model.tokenizer is None:
        return None
    start = prompt_length if sequences.shape[1] > prompt_length else 0
    return [decode_text(model, row[start:], until_end=start > 0) for row in sequences.tolist()]
