"""The denoising loop of masked diffusion models: LLaDA's blocks, Dream's timesteps, threshold decoding, block caches,
guidance.

The canvas is the prompt followed by masks. In each step every masked position of the current block is predicted, and
the most confident predictions are committed; attention is full over the canvas. One loop serves all families: the
schedule says how many positions a step commits, the confidence rule says which.

    for step in denoise(model, "Question: ...", Denoising(gen_length=64)):
        step.canvas, step.committed

A masked position is never filled with the mask token, so the loop always ends without masks. Rows of a batch do not
influence one another. With a cache and a shifted family (Dream), the full pass that begins a block commits the block's
first position and nothing else, as in Fast-dLLM: its predictor lies outside the block and is not computed again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from sinkscope.attention import GROUPS, NOT_COUNTED
from sinkscope.decoding.caches import BlockCache, BlockPlace
from sinkscope.decoding.canvas import (
    Canvas,
    Prompts,
    check_context,
    check_token_ids,
    doubled,
    encode_prompts,
    lay_out,
    mask_text,
    mask_token,
    which_prompt,
)
from sinkscope.decoding.choice import Block, Choice, Predictions
from sinkscope.decoding.compressing import Compression
from sinkscope.decoding.compressing_blocks import block_layers, check_block_compression
from sinkscope.decoding.confidence import CONFIDENCE, Candidates
from sinkscope.decoding.coupling import check_cached
from sinkscope.decoding.forward import forward_for, guided
from sinkscope.decoding.intervening import Intervention, check_intervention
from sinkscope.decoding.sampling import Sampler, prompt_seeds, row_generators, uniform_noise
from sinkscope.decoding.schedules import SCHEDULES
from sinkscope.decoding.settings import Denoising
from sinkscope.decoding.step import Step
from sinkscope.errors import UserError
from sinkscope.families import Model

_FEW_STEPS = 1024
_STEPS_A_MASK = 4
"""More steps than masks are as published, but a pass that commits nothing leaves everything as it is."""


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

    seeds: one seed a prompt, instead of those drawn from `settings.seed` and the prompts. intervention: what is cut
        from attention meanwhile, see `sinkscope.interventions`. compression: which keys a block cache drops after the
        first pass of each block, see `sinkscope.compression`. Everything is checked before the first pass; raises
        `UserError`.
    """
    mask = _mask_token(model)
    settings = settings or default_denoising(model)
    encoded = encode_prompts(model, prompts)
    check_denoising(model, encoded, settings, intervention, compression)
    if compression is not None:
        compression.ready(model)
    canvas = lay_out(model, encoded, settings.gen_length, mask)
    seeds = prompt_seeds(encoded, settings.seed) if seeds is None else seeds
    return _Run(model, canvas, settings, seeds, intervention, compression).steps()


def default_denoising(model: Model) -> Denoising:
    """The family's own way to decode."""
    return Denoising(**dict(model.family.default_decoding))  # type: ignore[arg-type]


def check_denoising(
    model: Model,
    encoded: Sequence[Sequence[int]],
    settings: Denoising,
    intervention: Intervention | None = None,
    compression: Compression | None = None,
) -> None:
    """Raise `UserError` for prompts, given as token ids, that can't be denoised with these settings."""
    mask = _mask_token(model)
    if not isinstance(settings, Denoising):
        raise UserError(f"a model that fills masks takes Denoising settings, got {type(settings).__name__}")
    check_context(model, max(map(len, encoded)), settings.gen_length, "gen_length")
    holds_masks = [mask in tokens for tokens in encoded]
    if settings.gen_length == 0 and not all(holds_masks):
        which = which_prompt(holds_masks.index(False), encoded)
        raise UserError(f"{which} holds no mask to fill; write {mask_text(model)} in it, or set gen_length")
    if settings.cache is not None:
        check_cached(model, 0, max(map(len, encoded)) + settings.gen_length, "from block to block; or use cache=None")
        if model.family.name == "masked-lm":
            raise UserError(f"{model.name} is a masked language model without a key-value cache; use cache=None")
        if any(holds_masks):
            which = which_prompt(holds_masks.index(True), encoded)
            raise UserError(f"{which} holds {mask_text(model)}, which a block cache can't fill; use cache=None")
    check_token_ids(model, "suppress", settings.suppress, never=(mask,))
    check_token_ids(model, "defer", settings.defer)
    prompts = [len(tokens) for tokens in encoded]
    fewest = check_block_compression(compression, model, settings, prompts, intervention)
    masks = max(sum(token == mask for token in tokens) for tokens in encoded)
    most = max(_FEW_STEPS, _STEPS_A_MASK * (settings.gen_length + masks))
    if settings.steps is not None and settings.steps > most:
        raise UserError(
            f"steps {settings.steps} for {settings.gen_length + masks} masks: nearly all would commit nothing and "
            f"change nothing; use at most {most}, or None for one position a step"
        )
    passes = most_passes(settings, masks)
    check_intervention(intervention, model, fewest=fewest, most=max(prompts) + settings.gen_length, passes=passes)


def _mask_token(model: Model) -> int:
    return mask_token(model, "has no mask token; use `decode` and Decoding settings")


def most_passes(settings: Denoising, most_masks: int) -> int:
    """The most forward passes that a generation can take, with at most `most_masks` masks in a prompt.

    A pass follows the schedule's steps or commits something in each row that has masks left; a cached block makes at
    least two passes.
    """
    least = 1 if settings.cache is None else 2
    appended = settings.blocks * max(least, settings.gen_length // settings.blocks) if settings.gen_length else 0
    one_by_one = appended + most_masks
    return max(one_by_one, settings.steps or 0)


class _Run:
    """One generation: the canvas as it is now, and what is fixed about it."""

    def __init__(
        self,
        model: Model,
        canvas: Canvas,
        settings: Denoising,
        seeds: Sequence[int],
        intervention: Intervention | None,
        compression: Compression | None,
    ) -> None:
        self._model = model
        self._settings = settings
        self._noise = row_generators(seeds)
        self._prompt_length = canvas.prompt_length
        self._tokens = canvas.tokens.clone()
        mask_id = _mask_token(model)
        self._mask_id = mask_id
        self._real = canvas.real
        self._generated = (canvas.tokens == mask_id) & canvas.real
        width = canvas.tokens.shape[1]
        length = settings.block_length if settings.gen_length and settings.block_length else width
        columns = torch.arange(width, device=canvas.tokens.device)
        # Masks inside the prompt belong to the first block.
        self._block_of = ((columns - canvas.prompt_length).clamp(min=0) // length).expand_as(canvas.tokens)
        self._block_length = length
        self._schedule = SCHEDULES[settings.schedule]
        self._sampler = Sampler(
            temperature=settings.temperature,
            top_p=settings.top_p,
            top_k=settings.top_k,
            suppress=settings.suppress,
            never=(mask_id,),
            tempered=self._schedule.tempered,
        )
        guided = settings.cfg_scale > 0
        self._fed_canvas, self._fed_seeds = (doubled(canvas), [*seeds, *seeds]) if guided else (canvas, seeds)
        self._forward = forward_for(model, self._fed_canvas, intervention, self._fed_seeds)
        self._dropping = None if compression is None else compression.for_blocks(model)
        self._choice = Choice(settings, padding=(~canvas.real).sum(-1).tolist(), width=width)
        self._index = 0

    @torch.no_grad()
    def steps(self) -> Iterator[Step]:
        """All steps, block after block."""
        for number in range(self._settings.blocks):
            block = self._begin(number)
            while not self._ended(block):
                yield self._advance(block)
                if block.cache is not None and block.step == 1:
                    block.fed = block.cache.hold()

    def _begin(self, number: int) -> Block:
        width = self._tokens.shape[1]
        first = 0 if self._settings.gen_length == 0 else self._prompt_length + number * self._block_length
        last = min(first + self._block_length, width)
        at_start = self._open(number).sum(-1).tolist()
        steps = self._settings.steps
        return Block(
            number=number,
            bounds=(first, last),
            fed=(0, width),
            steps=[max(1, masks) if steps is None else steps // self._settings.blocks for masks in at_start],
            masks=at_start,
            held_back=[0] * len(at_start),
            cache=self._empty_cache(first, last),
        )

    def _empty_cache(self, start: int, stop: int) -> BlockCache | None:
        kind = self._settings.cache
        if kind is None:
            return None
        canvas = self._fed_canvas
        place = BlockPlace(kind=kind, start=start, stop=stop, real=canvas.real, prompt_length=canvas.prompt_length)
        return BlockCache(place, block_layers(self._dropping, self._model, place, self._fed_seeds))

    def _ended(self, block: Block) -> bool:
        """As in the references: all scheduled steps are made; threshold and cached decoding end when nothing is left.

        A cached block makes at least two passes, the full one and one over the cache.
        """
        if self._settings.threshold is None and block.cache is None:
            return block.step == max(block.steps)
        return block.step >= (1 if block.cache is None else 2) and not bool(self._open(block.number).any())

    def _takes_part(self, block: Block, open_now: torch.Tensor) -> torch.Tensor:
        """Rows, (batch,) boolean, that would make this pass alone too; the others wait for them. See `_ended`."""
        if self._settings.threshold is None and block.cache is None:
            return torch.tensor([block.step < steps for steps in block.steps], device=open_now.device)
        return open_now.any(-1) | (block.step < (1 if block.cache is None else 2))

    def _advance(self, block: Block) -> Step:
        """One forward pass and its commits."""
        seen = self._tokens.clone()
        open_now = self._open(block.number)
        takes_part = self._takes_part(block, open_now)
        groups = self._groups(block.number)[:, block.fed[0] : block.fed[1]]
        groups = groups.masked_fill(~takes_part.unsqueeze(-1), NOT_COUNTED)  # alone it would not ask
        only_first = block.cache is not None and block.step == 0 and self._model.family.logit_shift
        if only_first:
            open_now = open_now & (torch.arange(open_now.shape[1], device=open_now.device) == block.bounds[0])
        predictions = self._predict(open_now, block.fed, groups, block.cache)
        chosen = (
            torch.ones_like(predictions.rows, dtype=torch.bool) if only_first else self._choice.of(predictions, block)
        )
        rows, columns = predictions.rows[chosen], predictions.columns[chosen]
        self._tokens[rows, columns] = predictions.tokens[chosen]
        committed = torch.zeros_like(self._generated)
        committed[rows, columns] = True
        confidence = torch.full(seen.shape, torch.nan, device=seen.device)
        confidence[rows, columns] = predictions.confidence[chosen].float()
        step = Step(
            index=self._index,
            block=block.number,
            block_range=block.bounds,
            queries=block.fed,
            seen=seen,
            canvas=self._tokens.clone(),
            committed=committed,
            confidence=confidence,
            groups=groups,
            takes_part=takes_part,
            removed=None if self._forward.removed is None else self._forward.removed.first(len(seen)),
        )
        self._index += 1
        block.step += 1
        return step

    def _predict(
        self, open_now: torch.Tensor, fed: tuple[int, int], groups: torch.Tensor, cache: BlockCache | None
    ) -> Predictions:
        """Predict every open position, (batch, position) boolean."""
        rows, columns = open_now.nonzero(as_tuple=True)
        wanted = (int(columns.min()), int(columns.max()) + 1) if len(columns) else (fed[0], fed[0] + 1)
        logits = self._logits(fed, wanted, groups, cache)[rows, columns - wanted[0]]
        if not len(rows):
            none = logits.new_zeros(0)
            return Predictions(rows=rows, columns=columns, tokens=rows, confidence=none, order=none)
        tokens, probabilities = self._sampler.choose(logits, rows, self._noise)
        uniform = uniform_noise(rows, self._noise) if self._settings.confidence == "random" else torch.zeros(len(rows))
        candidates = Candidates(probabilities=probabilities, tokens=tokens, uniform=uniform)
        confidence = order = CONFIDENCE[self._settings.confidence].score(candidates)
        if self._settings.defer:
            # As in LLaDA at temperature 0: the others are ordered by what they are without the deferred tokens.
            deferred = torch.tensor(self._settings.defer, device=tokens.device)
            rest = probabilities.index_fill(-1, deferred, 0)
            rest = rest / rest.sum(-1, keepdim=True).clamp(min=torch.finfo(rest.dtype).tiny)
            late = torch.isin(tokens, deferred)
            order = CONFIDENCE[self._settings.confidence].score(replace(candidates, probabilities=rest))
            order = order.masked_fill(late, -torch.inf)
        return Predictions(rows=rows, columns=columns, tokens=tokens, confidence=confidence, order=order)

    def _logits(
        self, fed: tuple[int, int], wanted: tuple[int, int], groups: torch.Tensor, cache: BlockCache | None
    ) -> torch.Tensor:
        """Logits (batch, wanted column, token), guided if asked for."""
        if self._settings.cfg_scale == 0:
            return self._forward(self._tokens, fed, wanted, groups, cache)
        blind = self._tokens.masked_fill(self._real & ~self._generated, self._mask_id)
        both = torch.cat([self._tokens, blind])
        return guided(self._forward(both, fed, wanted, groups.repeat(2, 1), cache), self._settings.cfg_scale)

    def _open(self, block: int) -> torch.Tensor:
        """Positions that may be committed now, (batch, position): masked, and not in a later block."""
        return (self._tokens == self._mask_id) & self._generated & (self._block_of <= block)

    def _groups(self, block: int) -> torch.Tensor:
        """Who is who, (batch, position): an index into `GROUPS`, or `NOT_COUNTED`."""
        masked = self._tokens == self._mask_id
        inside = torch.where(masked, GROUPS.index("block-masked"), GROUPS.index("block-committed"))
        label = torch.where(self._block_of < block, GROUPS.index("committed"), inside)
        label = torch.where(self._block_of > block, GROUPS.index("later"), label)
        label = torch.where(self._generated, label, GROUPS.index("prompt"))
        return torch.where(self._real, label, NOT_COUNTED)
