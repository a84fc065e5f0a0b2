"""The denoising loop of diffusion models: LLaDA's blocks, Dream's timesteps, threshold decoding, caches, guidance,
block-causal models.

The canvas is the prompt followed by masks. In each step every masked position of the current block is predicted, and
the most confident predictions are committed. One loop serves all families: the schedule says how many positions a step
commits, the confidence rule says which. Attention is full over the canvas; a block-causal model sees the canvas up to
the end of its block, so that its canvas grows by blocks.

    for step in denoise(model, "Question: ...", Denoising(gen_length=64)):
        step.canvas, step.committed

A masked position is never filled with the mask token, so the loop always ends without masks. Rows of a batch do not
influence one another. With a cache and a shifted family (Dream), the full pass that begins a block commits the block's
first position and nothing else, as in Fast-dLLM: its predictor lies outside the block and is not computed again.

With cache "blocks", a pass over what has been finished since comes before a block, and writes its keys for good; that
is exact. SDAR and Fast-dLLM v2 write a block at its end, the last one too, whose keys nobody reads: one pass more.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from transformers import Cache, DynamicCache

from sinkscope.attention import GROUPS, NOT_COUNTED
from sinkscope.decoding.blockwise import Lines
from sinkscope.decoding.caches import BlockCache, BlockPlace
from sinkscope.decoding.canvas import Canvas, doubled
from sinkscope.decoding.choice import CONFIDENCE, SCHEDULES, Block, Candidates, CommitRule, Predictions
from sinkscope.decoding.forward import forward_for, guided
from sinkscope.decoding.protocols import BlockCompression, Intervention, Step, block_layers
from sinkscope.decoding.sampling import Sampler, row_generators, uniform_noise
from sinkscope.decoding.settings import Denoising
from sinkscope.families import Model


def denoise_canvas(
    model: Model,
    canvas: Canvas,
    settings: Denoising,
    seeds: Sequence[int],
    intervention: Intervention | None,
    dropping: BlockCompression | None,
) -> Iterator[Step]:
    """The steps of a canvas; nothing is checked. seeds: one a row."""
    return _Denoising(model, canvas, settings, seeds, intervention, dropping).steps()


class _Denoising:
    """One generation: the canvas as it is now, and what is fixed about it."""

    def __init__(
        self,
        model: Model,
        canvas: Canvas,
        settings: Denoising,
        seeds: Sequence[int],
        intervention: Intervention | None,
        dropping: BlockCompression | None,
    ) -> None:
        self._model = model
        self._settings = settings
        self._noise = row_generators(seeds)
        self._tokens = canvas.tokens.clone()
        mask_id = model.family.mask_token_id
        assert mask_id is not None
        self._mask_id = mask_id
        self._real = canvas.real
        self._generated = (canvas.tokens == mask_id) & canvas.real
        self._blocks = Lines.of(model, canvas.prompt_length, canvas.tokens.shape[1], settings)
        columns = torch.arange(self._blocks.width, device=canvas.tokens.device)
        # Masks inside the prompt belong to the first block.
        self._block_of = ((columns - self._blocks.first).clamp(min=0) // self._blocks.length).expand_as(canvas.tokens)
        self._ends = torch.tensor(model.family.eos_token_ids, dtype=torch.long, device=canvas.tokens.device)
        self._going = torch.ones(len(canvas.tokens), dtype=torch.bool, device=canvas.tokens.device)
        self._kept = DynamicCache(config=model.network.config) if settings.cache == "blocks" else None
        self._before: torch.Tensor | None = None  # logits (batch, 1, token) of the block's first column
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
        self._dropping = dropping
        padding = (~canvas.real).sum(-1).tolist()
        self._rule = CommitRule(self._schedule, settings.threshold, padding, self._blocks.width)
        self._index = 0

    @torch.no_grad()
    def steps(self) -> Iterator[Step]:
        """All steps, block after block."""
        for number in range(self._blocks.count):
            block = self._begin(number)
            if self._kept is not None and block.bounds[0] > 0:
                yield self._read(block)
            while not self._ended(block):
                yield self._advance(block)
                if isinstance(block.cache, BlockCache) and block.step == 1:
                    block.fed = block.cache.hold()
            self._stop(after_block=True)
            if not bool(self._going.any()):
                return

    def _begin(self, number: int) -> Block:
        first, last = self._blocks.bounds(number)
        at_start = self._open(number).sum(-1).tolist()
        masks = [self._blocks.length] * len(at_start) if self._schedule.whole_block else at_start
        asked = self._blocks.steps(self._settings.steps)
        steps = [max(1, one) if asked is None else asked for one in masks]
        return Block(
            number=number,
            bounds=(first, last),
            fed=(first if self._kept is not None else 0, self._end(last)),
            steps=steps,
            passes=[self._schedule.passes(*one) for one in zip(steps, masks, strict=True)],
            masks=masks,
            held_back=[0] * len(at_start),
            cache=self._empty_cache(first, last) if self._kept is None else self._kept,
        )

    def _end(self, last: int) -> int:
        """Columns that are there while the block that ends at `last` is denoised."""
        return last if self._blockwise else self._blocks.width

    def _there(self, fed: tuple[int, int]) -> slice:
        """Columns that a pass over `fed` attends to."""
        return slice(0, fed[1] if self._blockwise else self._blocks.width)

    @property
    def _blockwise(self) -> bool:
        return self._model.family.blocks is not None

    def _empty_cache(self, start: int, stop: int) -> BlockCache | None:
        kind = self._settings.cache
        if kind is None or (self._blockwise and start == 0):  # nothing lies before the block
            return None
        canvas = self._fed_canvas
        real = canvas.real[:, : self._end(stop)]
        place = BlockPlace(kind=kind, start=start, stop=stop, real=real, prompt_length=canvas.prompt_length)
        return BlockCache(place, block_layers(self._dropping, self._model, place, self._fed_seeds))

    def _least(self, block: Block) -> int:
        """The fewest passes of a block: two with a block cache, the full one and one over the cache."""
        if self._blockwise:
            return 0
        return 1 if block.cache is None else 2

    @property
    def _until_filled(self) -> bool:
        """Whether a block ends when nothing is left, rather than with its schedule: with a threshold or a cache, and in
        all block-causal models."""
        return self._settings.threshold is not None or self._settings.cache is not None or self._blockwise

    def _ended(self, block: Block) -> bool:
        """As in the references."""
        if not self._until_filled:
            return block.step == max(block.passes)
        return block.step >= self._least(block) and not bool(self._open(block.number).any())

    def _takes_part(self, block: Block, open_now: torch.Tensor) -> torch.Tensor:
        """Rows, (batch,) boolean, that would make this pass alone too; the others wait for them. See `_ended`."""
        if not self._until_filled:
            return torch.tensor([block.step < passes for passes in block.passes], device=open_now.device)
        return open_now.any(-1) | (block.step < self._least(block))

    def _read(self, block: Block) -> Step:
        """The pass over what was finished since the last block, which writes its keys."""
        assert self._kept is not None
        fed, family = (self._kept.get_seq_length(), block.bounds[0]), self._model.family
        assert family.blocks is not None
        first = self._is_first(block) & self._open(block.number) & family.blocks.seeded
        return self._pass(block, fed, first, self._going, finished=True)

    def _advance(self, block: Block) -> Step:
        """One denoising pass and its commits."""
        family, open_now = self._model.family, self._open(block.number)
        takes_part = self._takes_part(block, open_now)
        # The first column's predictor is fed in this pass alone.
        before = isinstance(block.cache, BlockCache) and family.logit_shift
        before = before or (self._kept is None and family.blocks is not None and family.blocks.seeded)
        first = self._is_first(block) & open_now
        if before and block.step == 0 and (not self._blockwise or bool(first.any())):
            open_now = first
        step = self._pass(block, block.fed, open_now, takes_part, only_first=open_now is first)
        if self._kept is not None:
            self._kept.crop(block.fed[0] - block.fed[1])
        block.step += 1
        return step

    def _is_first(self, block: Block) -> torch.Tensor:
        """The block's first column, (position,) boolean."""
        return torch.arange(self._tokens.shape[1], device=self._tokens.device) == block.bounds[0]

    def _pass(
        self,
        block: Block,
        fed: tuple[int, int],
        open_now: torch.Tensor,
        takes_part: torch.Tensor,
        *,
        only_first: bool = False,
        finished: bool = False,
    ) -> Step:
        """One forward pass over the columns `fed`, and its commits among those open now, (batch, position).

        only_first: all of them are committed. finished: what is fed is finished, see `Forward`.
        """
        stop = self._end(block.bounds[1])
        seen = self._tokens[:, self._there(fed)].clone()
        groups = self._groups(block.number)[:, fed[0] : fed[1]]
        groups = groups.masked_fill(~takes_part.unsqueeze(-1), NOT_COUNTED)  # alone it would not ask
        predictions = self._predict(self._parts(open_now), fed, groups, block.cache, finished)
        everything = only_first or finished
        chosen = (
            torch.ones_like(predictions.rows, dtype=torch.bool) if everything else self._rule.of(predictions, block)
        )
        rows, columns = predictions.rows[chosen], predictions.columns[chosen]
        self._tokens[rows, columns] = predictions.tokens[chosen]
        committed = torch.zeros_like(self._generated)
        committed[rows, columns] = True
        confidence = torch.full(self._tokens.shape, torch.nan, device=seen.device)
        confidence[rows, columns] = predictions.confidence[chosen].float()
        self._stop(after_block=False)
        step = Step(
            index=self._index,
            block=block.number,
            block_range=block.bounds,
            queries=fed,
            seen=seen,
            canvas=self._tokens[:, :stop].clone(),
            committed=committed[:, :stop],
            confidence=confidence[:, :stop],
            groups=groups,
            takes_part=takes_part,
            removed=None if self._forward.removed is None else self._forward.removed.first(len(seen)),
        )
        self._index += 1
        return step

    def _parts(self, open_now: torch.Tensor) -> torch.Tensor:
        """Of the open positions, those in each row's first part of the block that has any."""
        length = self._settings.sub_block_length
        if length is None:
            return open_now
        columns = torch.arange(open_now.shape[1], device=open_now.device)
        part = (columns - self._blocks.first).clamp(min=0) // length
        current = part.expand_as(open_now).masked_fill(~open_now, open_now.shape[1]).amin(-1, keepdim=True)
        return open_now & (part == current)

    def _stop(self, *, after_block: bool) -> None:
        """Note which texts have ended. What is masked in them is filled with padding, and no more is asked of them."""
        if self._settings.stop is None or (self._settings.stop == "block" and not after_block):
            return
        ends = torch.isin(self._tokens, self._ends) & self._generated
        masked = (self._tokens == self._mask_id) & self._generated
        done = (ends & (masked.cumsum(-1) == 0)).any(-1) & self._going
        self._going = self._going & ~done
        self._tokens = torch.where(done.unsqueeze(-1) & masked, self._model.family.pad_token_id, self._tokens)

    def _predict(
        self, open_now: torch.Tensor, fed: tuple[int, int], groups: torch.Tensor, cache: Cache | None, finished: bool
    ) -> Predictions:
        """Predict every open position, (batch, position) boolean."""
        rows, columns = open_now.nonzero(as_tuple=True)
        wanted = (int(columns.min()), int(columns.max()) + 1) if len(columns) else (fed[0], fed[0] + 1)
        if finished:
            wanted = (fed[1], fed[1] + 1)
        logits = self._logits(fed, wanted, groups, cache, finished)
        if self._kept is not None and self._model.family.logit_shift:
            if finished:
                self._before = logits
            elif self._before is not None and wanted[0] == fed[0]:  # predicted by the pass before
                logits = torch.cat([self._before, logits[:, 1:]], dim=1)
        logits = logits[rows, columns - wanted[0]]
        if not len(rows):
            none = logits.new_zeros(0)
            return Predictions(rows=rows, columns=columns, tokens=rows, confidence=none, order=none)
        tokens, probabilities = self._sampler.choose(logits, rows, self._noise)
        uniform = uniform_noise(rows, self._noise) if self._settings.confidence == "random" else torch.zeros(len(rows))
        candidates = Candidates(probabilities=probabilities, tokens=tokens, uniform=uniform, columns=columns)
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
        self,
        fed: tuple[int, int],
        wanted: tuple[int, int],
        groups: torch.Tensor,
        cache: Cache | None,
        finished: bool,
    ) -> torch.Tensor:
        """Logits (batch, wanted column, token), guided if asked for."""
        there = self._there(fed)
        if self._settings.cfg_scale == 0:
            return self._forward(self._tokens[:, there], fed, wanted, groups, cache, finished=finished)
        blind = self._tokens.masked_fill(self._real & ~self._generated, self._mask_id)
        both = torch.cat([self._tokens, blind])[:, there]
        logits = self._forward(both, fed, wanted, groups.repeat(2, 1), cache, finished=finished)
        return guided(logits, self._settings.cfg_scale)

    def _open(self, block: int) -> torch.Tensor:
        """Positions that may be committed now, (batch, position): masked, and not in a later block."""
        return (self._tokens == self._mask_id) & self._generated & (self._block_of <= block)

    def _groups(self, block: int) -> torch.Tensor:
        """Labels of all columns, (batch, position): an index into `GROUPS`, or `NOT_COUNTED`."""
        masked = self._tokens == self._mask_id
        inside = torch.where(masked, GROUPS.index("block-masked"), GROUPS.index("block-committed"))
        label = torch.where(self._block_of < block, GROUPS.index("committed"), inside)
        label = torch.where(self._block_of > block, GROUPS.index("later"), label)
        label = torch.where(self._generated, label, GROUPS.index("prompt"))
        return torch.where(self._real, label, NOT_COUNTED)
