"""From prompts to generations: `Run` checks what is asked and makes the steps, `generate` hands back the outcome."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from sinkscope.decoding.autoregressive import decode_canvas
from sinkscope.decoding.blockwise import Lines, new_tokens
from sinkscope.decoding.canvas import (
    Prompts,
    after_prefix,
    check_autoregressive,
    check_context,
    check_token_ids,
    encode_prompts,
    lay_out,
    mask_text,
    mask_token,
    which_prompt,
)
from sinkscope.decoding.coupling import check_cached
from sinkscope.decoding.denoising import denoise_canvas
from sinkscope.decoding.protocols import (
    BlockLengths,
    Compression,
    Intervention,
    MaskingStats,
    Step,
    active,
    cache_for,
    prefix_of,
    warn_if_nothing,
)
from sinkscope.decoding.sampling import prompt_seeds
from sinkscope.decoding.settings import Decoding, Denoising, Settings
from sinkscope.decoding.texts import decode_text
from sinkscope.errors import TrainedLengthWarning, UserError
from sinkscope.families import Blockwise, Model

_FEW_STEPS = 1024
_STEPS_A_MASK = 4
"""More steps than masks are as published, but a pass that commits nothing leaves everything as it is."""


@dataclass(frozen=True)
class Run:
    """How texts are generated: the model, its decoding, what is masked and what is dropped from the cache meanwhile."""

    model: Model
    settings: Settings
    intervention: Intervention | None = None
    compression: Compression | None = None

    @property
    def masking(self) -> Intervention | None:
        """The intervention; None where it changes nothing."""
        return active(self.intervention)

    @property
    def prefix(self) -> tuple[int, ...]:
        """Token ids that the cache holds before any prompt is read."""
        return prefix_of(self.compression)

    def encode(self, prompts: Prompts) -> list[list[int]]:
        """Token ids of each prompt. Raises `UserError` as `encode_prompts` does."""
        return encode_prompts(self.model, prompts, continuing=bool(self.prefix))

    def check(self, encoded: Sequence[Sequence[int]]) -> None:
        """Raise `UserError` for prompts, given as token ids, that can't be continued in this way."""
        both_ways, family = self.model.family.bidirectional, self.model.family.name
        wanted, kind = (Denoising, "sees in both directions") if both_ways else (Decoding, "is autoregressive")
        if not isinstance(self.settings, wanted):
            raise UserError(
                f"{self.model.name} ({family}) {kind} and takes {wanted.__name__} settings, got "
                f"{type(self.settings).__name__}"
            )
        if isinstance(self.settings, Denoising):
            _check_denoising(self, self.settings, encoded)
        else:
            _check_decoding(self, self.settings, encoded)

    def max_steps(self, encoded: Sequence[Sequence[int]]) -> int:
        """The most steps that generating from these prompts together can take."""
        mask, new, blocks = self.model.family.mask_token_id, self.new_tokens(encoded), self.model.family.blocks
        if blocks is not None:  # every denoising pass commits something, and one pass reads what was finished
            return new + -(-new // blocks.length) + 1
        return self.settings.max_steps(max(sum(token == mask for token in tokens) for tokens in encoded))

    def new_tokens(self, encoded: Sequence[Sequence[int]]) -> int:
        """Columns that are generated after these prompts, run together."""
        if isinstance(self.settings, Decoding):
            return self.settings.new_tokens
        return new_tokens(self.model, self.settings, map(len, encoded))

    def steps(self, prompts: Prompts, seeds: Sequence[int] | None = None) -> Iterator[Step]:
        """Generate, a `Step` after each forward pass. seeds: one a prompt, instead of those drawn from `settings.seed`
        and the prompts. Everything is checked before the first pass; raises `UserError`."""
        model, settings, prefix = self.model, self.settings, self.prefix
        encoded = self.encode(prompts)
        self.check(encoded)
        if self.compression is not None:
            self.compression.ready(model)
        seeds = prompt_seeds([[*prefix, *tokens] for tokens in encoded], settings.seed) if seeds is None else seeds
        if isinstance(settings, Denoising):
            canvas = lay_out(model, encoded, self.new_tokens(encoded), _mask_of(model))
            dropping = None if self.compression is None else self.compression.for_blocks(model)
            return denoise_canvas(model, canvas, settings, seeds, self.masking, dropping)
        canvas = after_prefix(lay_out(model, encoded, settings.new_tokens, model.family.pad_token_id), prefix)
        cache = cache_for(self.compression, model, seeds)
        return decode_canvas(model, canvas, len(prefix), settings, seeds, cache, self.masking)


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
    settings: Denoising | None = None,
    *,
    seeds: Sequence[int] | None = None,
    intervention: Intervention | None = None,
    compression: Compression | None = None,
) -> Iterator[Step]:
    """Generate with a masked diffusion model or a masked language model, a `Step` after each forward pass.

    Parameters as for `generate`; `seeds` as for `Run.steps`. A block cache drops keys after the first pass of each
    block. Raises `UserError` before any pass.
    """
    _mask_of(model)
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


def default_settings(model: Model) -> Settings:
    """The family's own way to decode."""
    kind = Denoising if model.family.bidirectional else Decoding
    return kind(**dict(model.family.default_decoding))  # type: ignore[arg-type]


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


def _mask_of(model: Model) -> int:
    return mask_token(model, "has no mask token; use `decode` and Decoding settings")


def _check_decoding(run: Run, settings: Decoding, encoded: Sequence[Sequence[int]]) -> None:
    model, compression, masking = run.model, run.compression, run.masking
    network_class: Any = type(model.network)
    if not network_class._supports_default_dynamic_cache():
        raise UserError(f"{network_class.__name__} keeps a cache of its own kind, which `decode` can't make")
    lengths, new = [len(run.prefix) + len(tokens) for tokens in encoded], settings.new_tokens
    shortest, longest = min(lengths), max(lengths)
    check_context(model, longest, new, "max_new_tokens")
    check_token_ids(model, "suppress", settings.suppress)
    if compression is not None or masking is not None:
        check_cached(model, shortest, longest + new, "under an intervention or a compression")
    if compression is not None:
        _check_copies(masking)
        compression.check(model, lengths)
    if masking is not None:
        fewest = shortest if compression is None else compression.fewest_keys(model, shortest)
        masking.check(model, fewest=fewest, most=longest + new, passes=settings.max_steps())


def _check_denoising(run: Run, settings: Denoising, encoded: Sequence[Sequence[int]]) -> None:
    model, mask = run.model, _mask_of(run.model)
    lengths, new = [len(tokens) for tokens in encoded], run.new_tokens(encoded)
    check_context(model, max(lengths), new, "gen_length")
    holds_masks = [mask in tokens for tokens in encoded]
    if model.family.blocks is None:
        _check_whole_canvas(model, settings)
    else:
        _check_blockwise(model, model.family.blocks, settings, any(holds_masks))
    if settings.reads and any(holds_masks):
        which = which_prompt(holds_masks.index(True), encoded)
        raise UserError(
            f"{which} holds {mask_text(model)}, and gen_length=0 with steps=0 reads it; set steps to fill it"
        )
    if new == 0 and not (settings.reads or all(holds_masks)):
        which = which_prompt(holds_masks.index(False), encoded)
        raise UserError(f"{which} holds no mask to fill; write {mask_text(model)} in it, or set gen_length")
    if settings.cache is not None:
        check_cached(model, 0, max(lengths) + new, "from block to block; or use cache=None")
        if not model.family.has_cache:
            raise UserError(f"{model.name} is a masked language model without a key-value cache; use cache=None")
        if any(holds_masks):
            which = which_prompt(holds_masks.index(True), encoded)
            raise UserError(f"{which} holds {mask_text(model)}, which a block cache can't fill; use cache=None")
    check_token_ids(model, "suppress", settings.suppress, never=(mask,))
    check_token_ids(model, "defer", settings.defer)
    fewest = _fewest_keys(run, settings, lengths)
    masks = new + max(sum(token == mask for token in tokens) for tokens in encoded)
    most = max(_FEW_STEPS, _STEPS_A_MASK * masks)
    if settings.steps is not None and settings.steps > most:
        raise UserError(
            f"steps {settings.steps} for {masks} masks: nearly all would commit nothing and change nothing; use at "
            f"most {most}, or None for one position a step"
        )
    if run.masking is not None:
        run.masking.check(model, fewest=fewest, most=max(lengths) + new, passes=settings.max_steps(masks - new))


def _check_whole_canvas(model: Model, settings: Denoising) -> None:
    """Refuse what only block-causal models have."""
    if settings.cache == "blocks" or settings.stop is not None:
        which = "cache='blocks'" if settings.cache == "blocks" else f"stop={settings.stop!r}"
        raise UserError(
            f"{which} is of block-causal models, and {model.name} ({model.family.name}) sees its whole canvas; leave "
            "it out, or load a checkpoint that was trained so with load_model(..., block_length=)"
        )


def _check_blockwise(model: Model, blocks: Blockwise, settings: Denoising, masks_given: bool) -> None:
    """Refuse what a block-causal model can't do."""
    length, name = blocks.length, f"{model.name} ({model.family.name})"
    if settings.block_length not in (None, length):
        raise UserError(
            f"{name} attends in blocks of {length}, block_length is {settings.block_length}; leave it out, or load the "
            f"model with block_length={settings.block_length}"
        )
    if settings.reads:
        return
    if settings.gen_length == 0 or masks_given:
        raise UserError(
            f"{name} is block-causal and fills the masks after a prompt alone; set gen_length, give no mask"
        )
    if settings.cache == "dual":
        raise UserError(f"{name} is block-causal: no key lies after a block; use cache='prefix' or 'blocks'")
    if settings.cache != "blocks" and blocks.causal_context:
        raise UserError(
            f"{name} makes the keys of a finished block in a causal pass of its own: use cache='blocks', without "
            "dropping keys"
        )
    if settings.cache != "blocks" and blocks.seeded and not model.family.logit_shift:
        raise UserError(
            f"{name} takes a block's first token from the pass that reads what stands before: use cache='blocks', "
            "without dropping keys"
        )


def _fewest_keys(run: Run, settings: Denoising, prompts: Sequence[int]) -> int:
    """The fewest keys of a row in attention, with prompts of these lengths. Raises `UserError` for a compression that
    can't be made of them."""
    model, compression = run.model, run.compression
    if compression is None and model.family.blocks is None:
        return min(prompts) + settings.new_tokens
    if compression is None:
        return min(prompts) if settings.reads else min(min(prompts), settings.gen_length)  # of the first pass
    prefix_of(compression)
    if not model.family.has_cache:
        raise UserError(
            f"{model.name} is a masked language model without a key-value cache, so there are no keys to drop; leave "
            "compression out"
        )
    if settings.cache in (None, "blocks"):
        which = "cache='prefix'" if model.family.blocks is not None else "cache='dual' or cache='prefix'"
        raise UserError(
            f"{model.name} ({model.family.name}) sees in both directions: keys are dropped from a block cache only, so "
            f"set {which} in Denoising"
        )
    _check_copies(run.masking)
    compression.check(model, [])
    dropping, blocks = compression.for_blocks(model), _block_lengths(model, settings, prompts)
    dropping.check(blocks)
    return min(map(dropping.fewest_keys, blocks))


def _check_copies(masking: Intervention | None) -> None:
    if masking is not None and masking.clean_copy:
        raise UserError("a clean copy beside a compressed cache would lose keys as well; use detect_from='masked'")


def _block_lengths(model: Model, settings: Denoising, prompts: Sequence[int]) -> list[BlockLengths]:
    """Every block of every length of a prompt that has something before it."""
    found = []
    for prompt in sorted(set(prompts)):
        canvas = prompt + new_tokens(model, settings, [prompt])
        lines = Lines.of(model, prompt, canvas, settings)
        for before, stop in map(lines.bounds, range(lines.count)):
            width = canvas if model.family.blocks is None else stop
            fed = stop - before if settings.cache == "dual" else width - before
            if before > 0:
                found.append(BlockLengths(prompt=prompt, before=before, context=width - fed, fed=fed))
    return found
