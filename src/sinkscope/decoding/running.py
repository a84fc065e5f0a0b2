"""A run: the model, how it decodes, what is masked and dropped meanwhile; every check before its first pass."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from sinkscope.decoding.autoregressive import decode_canvas
from sinkscope.decoding.blockwise import Lines, keeps_blocks, new_tokens
from sinkscope.decoding.canvas import (
    Prompts,
    after_prefix,
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
    Step,
    active,
    cache_for,
    prefix_of,
)
from sinkscope.decoding.refreshing import blocks_of
from sinkscope.decoding.renoising import renoise_canvas
from sinkscope.decoding.sampling import prompt_seeds
from sinkscope.decoding.settings import KINDS, Decoding, Denoising, Renoising, Settings
from sinkscope.errors import UserError
from sinkscope.families import Blockwise, Family, Model, ModelDescription

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
        wanted = kind_of(self.model.family)
        if not isinstance(self.settings, wanted):
            words = {Denoising: "fills masks", Renoising: "refines random tokens", Decoding: "is autoregressive"}
            raise UserError(
                f"{self.model.name} ({self.model.family.name}) {words[wanted]} and takes {wanted.__name__} settings, "
                f"got {type(self.settings).__name__}"
            )
        if isinstance(self.settings, Denoising):
            _check_denoising(self, self.settings, encoded)
        elif isinstance(self.settings, Renoising):
            _check_renoising(self, encoded)
        else:
            _check_decoding(self, self.settings, encoded)

    def max_steps(self, encoded: Sequence[Sequence[int]]) -> int:
        """The most steps that generating from these prompts together can take."""
        mask, new, blocks = self.model.family.mask_token_id, self.new_tokens(encoded), self.model.family.blocks
        if blocks is not None and isinstance(self.settings, Renoising):
            return new // blocks.length * (self.settings.steps + 1)
        if blocks is not None:  # every denoising pass commits something, and one pass reads what was finished
            return new + -(-new // blocks.length) + 1
        assert not isinstance(self.settings, Renoising)
        return self.settings.max_steps(max(sum(token == mask for token in tokens) for tokens in encoded))

    def new_tokens(self, encoded: Sequence[Sequence[int]]) -> int:
        """Columns that are generated after these prompts, run together."""
        if isinstance(self.settings, Decoding):
            return self.settings.new_tokens
        if isinstance(self.settings, Renoising):
            return -(-self.settings.gen_length // self._canvas) * self._canvas
        return new_tokens(self.model, self.settings, map(len, encoded))

    @property
    def _canvas(self) -> int:
        """Tokens of a canvas of a renoising model."""
        assert self.model.family.blocks is not None
        return self.model.family.blocks.length

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
            canvas = lay_out(model, encoded, self.new_tokens(encoded), require_mask(model))
            dropping = None if self.compression is None else self.compression.for_blocks(model)
            return denoise_canvas(model, canvas, settings, seeds, self.masking, dropping)
        if isinstance(settings, Renoising):
            canvas = lay_out(model, encoded, self.new_tokens(encoded), model.family.pad_token_id)
            return renoise_canvas(model, canvas, settings, seeds, self.masking)
        canvas = after_prefix(lay_out(model, encoded, settings.new_tokens, model.family.pad_token_id), prefix)
        cache = cache_for(self.compression, model, seeds)
        return decode_canvas(model, canvas, len(prefix), settings, seeds, cache, self.masking)


def default_settings(model: Model) -> Settings:
    """The family's own way to decode."""
    return kind_of(model.family)(**dict(model.family.default_decoding))  # type: ignore[arg-type]


def settings_with(model: Model, given: Mapping[str, Any]) -> Settings:
    """The family's own settings, but for the fields that are given: what the command line does. Raises `UserError` for
    a field that models of its kind do not have."""
    default = default_settings(model)
    foreign = sorted(given.keys() - {field.name for field in fields(default)})
    if foreign:
        name = f"--{foreign[0].replace('_', '-')}"
        raise UserError(f"{model.name} is {KINDS[type(default)]} model, which has no {name}; see `sinkscope info`")
    values = {**vars(default), **given}
    if isinstance(default, Denoising) and "gen_length" in given:  # which needs no steps and blocks of one's own
        if "steps" not in given:
            values["steps"] = None
        if "block_length" not in given and values["block_length"] is not None and values["gen_length"] > 0:
            values["block_length"] = min(values["block_length"], values["gen_length"])
        if values["gen_length"] == 0:
            values |= {name: None for name in ("cache", "block_length") if name not in given}
    drawn, sure = ("alg_temp", "stochastic_transfer"), ("threshold", "factor", "sub_block_length")
    ways = (("threshold", ("factor",)), ("factor", ("threshold",)), *((one, sure) for one in drawn))
    for one, others in ways:  # what the family says, beside which this has no meaning
        if given.get(one):
            values |= {other: None for other in others if other in values and other not in given}
    return type(default)(**values)


def kind_of(family: Family | ModelDescription) -> type[Settings]:
    """The settings that models of a family take."""
    if family.renoises:
        return Renoising
    return Denoising if family.bidirectional else Decoding


def require_mask(model: Model) -> int:
    """The mask token. Raises `UserError` as `mask_token` does."""
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


def _check_renoising(run: Run, encoded: Sequence[Sequence[int]]) -> None:
    model, lengths, new = run.model, [len(tokens) for tokens in encoded], run.new_tokens(encoded)
    check_context(model, max(lengths), new, "gen_length in whole canvases")
    assert isinstance(run.settings, Renoising)
    if run.settings.steps > _FEW_STEPS:
        raise UserError(f"steps {run.settings.steps} of a canvas of {run._canvas} tokens; use at most {_FEW_STEPS}")
    if run.compression is not None:
        raise UserError(
            f"{model.name} ({model.family.name}) keeps the keys of its encoder, which can't be dropped here; leave "
            "compression out"
        )
    if run.masking is not None:
        run.masking.check(model, fewest=min(lengths), most=max(lengths) + new, passes=run.max_steps(encoded))


def _check_denoising(run: Run, settings: Denoising, encoded: Sequence[Sequence[int]]) -> None:
    model, mask = run.model, require_mask(run.model)
    lengths, new = [len(tokens) for tokens in encoded], run.new_tokens(encoded)
    check_context(model, max(lengths), new, "gen_length")
    holds_masks = [mask in tokens for tokens in encoded]
    if model.family.blocks is None:
        _check_whole_canvas(model, settings, lengths)
    else:
        _check_blockwise(model, model.family.blocks, settings, any(holds_masks), len(encoded))
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
    check_token_ids(model, "cfg_keep_tokens", settings.cfg_keep_tokens)
    if settings.refreshing is not None and (run.masking is not None or run.compression is not None):
        raise UserError(
            f"cache={settings.cache!r} computes some columns alone, beside which no keys can be masked or dropped, nor "
            "hooks asked; use cache='dual' or 'prefix'"
        )
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


def _check_whole_canvas(model: Model, settings: Denoising, lengths: Sequence[int]) -> None:
    """Refuse what only block-causal models have, and texts whose blocks lie in different columns."""
    several = settings.block_length is not None and max(lengths) > settings.block_length
    if settings.gen_length == 0 and not settings.reads and several and min(lengths) < max(lengths):
        raise UserError(
            f"masks of texts of {min(lengths)} and {max(lengths)} tokens are filled in blocks of "
            f"{settings.block_length}, counted from each text's first token, which are different columns; run them one "
            "by one (batch size 1), or use block_length=None"
        )
    if settings.refreshing is not None:
        blocks_of(model)  # refuses layers that a cache can't compute in part
    if settings.cache == "blocks" or settings.stop is not None:
        which = "cache='blocks'" if settings.cache == "blocks" else f"stop={settings.stop!r}"
        raise UserError(
            f"{which} is of block-causal models, and {model.name} ({model.family.name}) sees its whole canvas; leave "
            "it out, or load a checkpoint that was trained so with load_model(..., block_length=)"
        )


def _check_blockwise(model: Model, blocks: Blockwise, settings: Denoising, masks_given: bool, rows: int) -> None:
    """Refuse what a block-causal model can't do."""
    length, name = blocks.length, f"{model.name} ({model.family.name})"
    if settings.refreshing is not None:
        raise UserError(f"{name} is block-causal and keeps finished blocks as they are; use cache='blocks' or 'prefix'")
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
    if settings.cache == "dual" and (settings.sub_block_length is None or blocks.causal_context):
        raise UserError(f"{name} is block-causal: no key lies after a block; use cache='prefix' or 'blocks'")
    if settings.cache == "dual" and rows > 1:
        raise UserError(
            f"cache='dual' of {name} feeds the part that a text is at, and {rows} texts are at different ones; run "
            "them one by one (batch size 1), or use cache='blocks'"
        )
    if settings.cache != "blocks" and blocks.causal_context:
        raise UserError(
            f"{name} makes the keys of a finished block in a causal pass of its own: use cache='blocks', without "
            "dropping keys"
        )
    if not keeps_blocks(model, settings) and blocks.seeded and not model.family.logit_shift:
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
    if settings.cache is None or keeps_blocks(model, settings):
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
