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
        self._prompt_length = canvas.prompt_length
        self._tokens = canvas.tokens.clone()
        mask_id = model.family.mask_token_id
        assert mask_id is not None
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
        self._dropping = dropping
        padding = (~canvas.real).sum(-1).tolist()
        self._rule = CommitRule(self._schedule, settings.threshold, padding, width)
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
            torch.ones_like(predictions.rows, dtype=torch.bool) if only_first else self._rule.of(predictions, block)
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
        """Labels of all columns, (batch, position): an index into `GROUPS`, or `NOT_COUNTED`."""
        masked = self._tokens == self._mask_id
        inside = torch.where(masked, GROUPS.index("block-masked"), GROUPS.index("block-committed"))
        label = torch.where(self._block_of < block, GROUPS.index("committed"), inside)
        label = torch.where(self._block_of > block, GROUPS.index("later"), label)
        label = torch.where(self._generated, label, GROUPS.index("prompt"))
        return torch.where(self._real, label, NOT_COUNTED)
