"""From prompts to generations: `generate` hands back the outcome, `denoise` and `decode` every step."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from sinkscope.decoding.canvas import Prompts, check_autoregressive
from sinkscope.decoding.protocols import Compression, Intervention, MaskingStats, Step, warn_if_nothing
from sinkscope.decoding.running import Run, default_settings, require_mask
from sinkscope.decoding.settings import Decoding, Denoising, Renoising, Settings
from sinkscope.decoding.texts import decode_text
from sinkscope.errors import TrainedLengthWarning
from sinkscope.families import Model


@dataclass(frozen=True, kw_only=True)
class Generation:
    """What came out. Rows are left-padded to the longest prompt; autoregressive rows that ended early are padded on the
    right."""

    sequences: torch.Tensor  # (batch, position) token ids, prompt and generation
    prompt_length: int  # columns that hold the (padded) prompts
    text: list[str] | None  # what was generated up to the end of text, without special tokens; None without a tokenizer
    forward_passes: int
    removed: MaskingStats | None  # what an intervention took away from each row in all steps; None without one
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

    settings: `Denoising` for diffusion and masked models, `Renoising` for those whose noise is random tokens,
        `Decoding` for autoregressive ones; None takes the family's own.
    intervention: what is cut from attention meanwhile, `MaskSinks(5)` for example; None or `MaskSinks(0)` is the plain
        run, bit for bit.
    compression: which keys the cache of an autoregressive model or the block cache of a diffusion model drops,
        `Compress("key-norm", 0.5)` for example, or a `Prefix` of an autoregressive model after which the prompts go on;
        its tokens then stand at the head of every sequence.
    history: keep the canvas after each step. on_step: called with each `Step`, for progress bars.
    Raises `UserError` before the first pass; warns with `TrainedLengthWarning`, once, where texts grow longer than
    those the model was trained on, and with `NothingMaskedWarning` where an intervention took nothing away.
    """
    run = Run(model, settings or default_settings(model), intervention, compression)
    encoded = run.encode(prompts)
    steps = run.steps(encoded)  # checks everything
    warn_beyond_training(model, [[*run.prefix, *max(encoded, key=len)]], run.settings)
    canvases: list[torch.Tensor] = []
    last: Step | None = None
    removed: MaskingStats | None = None
    for last in steps:
        removed = last.add_to(removed)
        if history:
            canvases.append(last.canvas)
        if on_step is not None:
            on_step(last)
    assert last is not None
    warn_if_nothing(removed)
    longest = len(run.prefix) + max(map(len, encoded))
    return Generation(
        sequences=last.canvas,
        prompt_length=longest,
        text=read_text(model, last.canvas, longest),
        forward_passes=last.index + 1,
        removed=removed,
        history=canvases if history else None,
    )


def denoise(
    model: Model,
    prompts: Prompts,
    settings: Denoising | Renoising | None = None,
    *,
    seeds: Sequence[int] | None = None,
    intervention: Intervention | None = None,
    compression: Compression | None = None,
) -> Iterator[Step]:
    """Generate with a diffusion model or a masked language model, a `Step` after each forward pass.

    Parameters as for `generate`; `seeds` as for `Run.steps`. A block cache drops keys after the first pass of each
    block. Raises `UserError` before any pass.
    """
    if not model.family.renoises:
        require_mask(model)
    return Run(model, settings or default_settings(model), intervention, compression).steps(prompts, seeds)


def decode(
    model: Model,
    prompts: Prompts,
    settings: Decoding | None = None,
    *,
    seeds: Sequence[int] | None = None,
    intervention: Intervention | None = None,
    compression: Compression | None = None,
) -> Iterator[Step]:
    """Generate with an autoregressive model. Step 0 reads the prompt; every later step feeds the one token before it.

    A row ends with an end-of-sequence token of the model, which is kept; afterwards it gets padding and commits
    nothing. Parameters as for `generate`; `seeds` as for `Run.steps`. After a `Prefix`, columns of the steps count the
    prefix too, and step 0 reads the prompt after it. Raises `UserError` before any pass.
    """
    check_autoregressive(model, "`denoise` and Denoising settings")
    return Run(model, settings or default_settings(model), intervention, compression).steps(prompts, seeds)


def warn_beyond_training(model: Model, encoded: Sequence[Sequence[int]], settings: Settings) -> None:
    """Warn where the longest prompt and what is generated exceed the texts of the model's training.

    The warning, a `TrainedLengthWarning`, names the line that called the caller.
    """
    trained, longest, new = model.family.trained_length, max(map(len, encoded)), settings.new_tokens
    if trained is not None and longest + new > trained:
        message = (
            f"{model.name} was trained on texts of at most {trained} tokens; a prompt of {longest} and {new} new ones "
            f"make {longest + new}, and what stands after the first {trained} may mean nothing"
        )
        warnings.warn(message, TrainedLengthWarning, stacklevel=3)


def read_text(model: Model, sequences: torch.Tensor, prompt_length: int) -> list[str] | None:
    """The generated part as text; the whole where masks of the prompt were filled."""
    if model.tokenizer is None:
        return None
    start = prompt_length if sequences.shape[1] > prompt_length else 0
    return [decode_text(model, row[start:], until_end=start > 0) for row in sequences.tolist()]
