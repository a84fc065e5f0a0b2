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
from contextlib import nullcontext
from dataclasses import replace

import torch
from transformers import Cache

from sinkscope.attention import NOT_COUNTED
from sinkscope.decoding.blockwise import Lines, keeps_blocks
from sinkscope.decoding.caches import BlockCache, BlockPlace, WrittenCache
from sinkscope.decoding.canvas import Canvas, doubled
from sinkscope.decoding.choice import SCHEDULES, Block, CommitRule, Predictions, drawn_counts
from sinkscope.decoding.filling import Filling
from sinkscope.decoding.forward import forward_for
from sinkscope.decoding.predicting import Predictor
from sinkscope.decoding.protocols import BlockCompression, Intervening, Intervention, Step, block_layers
from sinkscope.decoding.refreshing import Canvassed, RefreshingCache, RefreshRule
from sinkscope.decoding.sampling import row_generators
from sinkscope.decoding.settings import Denoising
from sinkscope.errors import UserError
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


def _least_passes(settings: Denoising, lines: Lines) -> int | None:
    """The fewest passes of a block that ends when nothing is left: with a threshold or a cache, and in all block-causal
    models. None where it ends with its schedule.

    A block cache has a full pass and one over the cache at least.
    """
    if lines.grows:
        return 0
    if settings.refreshing is not None:
        return 1
    if settings.cache is not None:
        return 2
    if not settings.by_certainty:
        return None
    return 0 if lines.first == 0 and lines.count > 1 else 1  # a block of a given text may hold no mask


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
        self._lines = Lines.of(model, canvas.prompt_length, canvas.tokens.shape[1], settings)
        self._filling = Filling(model, canvas, settings, self._lines)
        self._schedule = SCHEDULES[settings.schedule]
        keeps = keeps_blocks(model, settings)
        self._parts = keeps and settings.cache == "dual"
        self._kept = WrittenCache(model.network.config, parts=self._parts) if keeps else None
        guided = settings.cfg_scale > 0
        self._fed_canvas, self._fed_seeds = (doubled(canvas), [*seeds, *seeds]) if guided else (canvas, seeds)
        self._forward = forward_for(model, self._fed_canvas, intervention, self._fed_seeds)
        self._noise = row_generators(seeds)
        self._hooks = self._forward.intervening
        self._predictor = Predictor(model, canvas, settings, self._forward, self._noise)
        self._dropping = dropping
        rule = settings.refreshing
        self._refreshed = None if rule is None else _Refreshed(model, rule, self._filling, self._fed_canvas.real)
        padding = (~canvas.real).sum(-1).tolist()
        self._rule = CommitRule(self._schedule, padding, self._lines.width, settings.threshold, settings.factor)
        self._least = _least_passes(settings, self._lines)
        self._index = 0

    @torch.no_grad()
    def steps(self) -> Iterator[Step]:
        """All steps, block after block."""
        if self._settings.reads:
            yield self._read_whole()
            return
        if self._hooks is not None:
            self._filling.rewrite(self._hooks.tokens(None, self._filling.tokens.clone()), 0)
        for number in range(self._lines.count):
            block = self._begin(number)
            if self._kept is not None and block.bounds[0] > 0:
                yield self._read(block, self._kept)
            while not self._ended(block):
                yield self._advance(block)
            self._filling.stop(after_block=True)
            if not bool(self._filling.going.any()):
                return
        if bool(self._filling.open(self._lines.count).any()):
            raise UserError(
                f"a hook left masks behind the last pass, {self._index - 1}: it may put masks back while passes are "
                "left; more steps leave more"
            )

    def _begin(self, number: int) -> Block:
        first, last = self._lines.bounds(number)
        at_start = self._filling.open(number).sum(-1).tolist()
        masks = [self._lines.length] * len(at_start) if self._schedule.whole_block else at_start
        asked = self._lines.steps(self._settings.steps)
        steps = [max(1, one) if asked is None else asked for one in masks]
        partial = self._lines.partial(number)
        if partial and not self._schedule.skips_empty:  # no more steps than masks: the others would commit nothing
            steps = [max(1, min(pair)) for pair in zip(steps, masks, strict=True)]
        passes, drawn = [self._schedule.passes(*pair) for pair in zip(steps, masks, strict=True)], None
        if self._settings.stochastic_transfer:
            each = zip(steps, at_start, self._noise, strict=True)
            drawn = [drawn_counts(self._schedule, *one) for one in each]
            passes = [len(counts) for counts in drawn]
        if partial or self._hooks is not None:  # a block without masks takes none
            passes = [count if masked else 0 for count, masked in zip(passes, at_start, strict=True)]
        return Block(
            number=number,
            bounds=(first, last),
            fed=(0 if self._kept is None else first, self._lines.there(last)),
            steps=steps,
            passes=passes,
            masks=masks,
            held_back=[0] * len(at_start),
            cache=self._cache_of(first, last),
            drawn=drawn,
            most=max(at_start),
        )

    def _cache_of(self, start: int, stop: int) -> Cache | None:
        if self._kept is not None or self._refreshed is not None:
            return self._kept if self._refreshed is None else self._refreshed.cache
        kind = self._settings.cache
        if kind is None or (self._lines.grows and start == 0):  # nothing lies before the block
            return None
        canvas = self._fed_canvas
        real = canvas.real[:, : self._lines.there(stop)]
        place = BlockPlace(kind=kind, start=start, stop=stop, real=real, prompt_length=canvas.prompt_length)
        return BlockCache(place, block_layers(self._dropping, self._model, place, self._fed_seeds))

    def _ended(self, block: Block) -> bool:
        """As in the references."""
        least = self._least
        if least is None:
            return block.step == max(block.passes)
        if block.step < least or bool(self._filling.open(block.number).any()):
            if self._hooks is not None and block.step >= max(least, block.most):
                raise UserError(
                    f"a hook puts masks back and block {block.number} is not done after {block.step} passes, as many "
                    "as it had masks; put back fewer, or use a schedule with steps (no threshold)"
                )
            return False
        return True

    def _takes_part(self, block: Block, open_now: torch.Tensor) -> torch.Tensor:
        """Rows, (batch,) boolean, that would make this pass alone too; the others wait for them. See `_ended`."""
        least = self._least
        if least is None:
            return torch.tensor([block.step < passes for passes in block.passes], device=open_now.device)
        return open_now.any(-1) | (block.step < least)

    def _read(self, block: Block, kept: WrittenCache) -> Step:
        """The pass over what was finished since the last block, which writes its keys."""
        blocks = self._model.family.blocks
        seeds = blocks is not None and blocks.seeded
        first = self._filling.open(block.number) & self._filling.at(block.bounds[0]) & seeds
        fed = (kept.get_seq_length(), block.bounds[0])
        return self._pass(block, fed, first, self._filling.going, all_of_them=True, finished=True)

    def _read_whole(self) -> Step:
        """The one pass over a finished text."""
        width, rows = self._lines.width, len(self._filling.tokens)
        nothing = torch.zeros_like(self._filling.generated)
        none = [0] * rows
        block = Block(
            number=0, bounds=(0, width), fed=(0, width), steps=none, passes=none, masks=none, held_back=none, cache=None
        )
        going = self._filling.going
        return self._pass(block, block.fed, nothing, going, all_of_them=True, finished=True)

    def _advance(self, block: Block) -> Step:
        """One denoising pass and its commits."""
        family, open_now = self._model.family, self._filling.open(block.number)
        takes_part = self._takes_part(block, open_now)
        # The first column's predictor is fed in the first pass alone.
        before = isinstance(block.cache, BlockCache) and family.logit_shift
        before = before or (self._kept is None and family.blocks is not None and family.blocks.seeded)
        first = open_now & self._filling.at(block.bounds[0])
        only_first = before and block.step == 0 and (not self._lines.grows or bool(first.any()))
        open_now = first if only_first else self._filling.in_first_part(open_now)
        if self._refreshed is not None:
            open_now = self._refreshed.plan(block, open_now, self._index)
        fed = self._fed(block, open_now)
        step = self._pass(block, fed, open_now, takes_part, all_of_them=only_first)
        if self._kept is not None and (not self._parts or self._ended(block)):
            self._kept.forget(block.fed[1] - block.fed[0])
        block.step += 1
        if isinstance(block.cache, BlockCache) and block.step == 1:
            block.fed = block.cache.hold()
        return step

    def _fed(self, block: Block, open_now: torch.Tensor) -> tuple[int, int]:
        """The columns that the next denoising pass feeds: all of the block, or with a cache of it a part that has
        begun."""
        part = self._filling.begun_part(block.number, open_now) if self._parts and block.step > 0 else None
        if self._parts and self._kept is not None:
            if part is None and block.step > 0:
                self._kept.forget(block.fed[1] - block.fed[0])
            self._kept.feed(part)
        return block.fed if part is None else part

    def _pass(
        self,
        block: Block,
        fed: tuple[int, int],
        open_now: torch.Tensor,
        takes_part: torch.Tensor,
        *,
        all_of_them: bool,
        finished: bool = False,
    ) -> Step:
        """One forward pass over the columns `fed`, and its commits among those open now, (batch, position).

        finished: what is fed is finished, see `Forward`.
        """
        filling = self._filling
        before = filling.tokens.clone()
        seen = before[:, : self._lines.there(fed[1] if finished else block.bounds[1])]
        groups = filling.groups(block.number)[:, fed[0] : fed[1]]
        groups = groups.masked_fill(~takes_part.unsqueeze(-1), NOT_COUNTED)  # alone it would not ask
        with nullcontext() if self._refreshed is None else self._refreshed.cache.computing():
            predictions = self._predictor.predict(filling, seen, open_now, fed, groups, block, self._index, finished)
        every = torch.ones_like(predictions.rows, dtype=torch.bool)
        chosen = every if all_of_them else self._rule.of(predictions, block)
        rows, columns = predictions.rows[chosen], predictions.columns[chosen]
        filling.tokens[rows, columns] = predictions.tokens[chosen]
        committed = torch.zeros_like(filling.generated)
        committed[rows, columns] = True
        refreshed, real = self._refreshed, self._fed_canvas.real[:, slice(*fed)]
        if refreshed is not None:
            refreshed.saw(predictions, committed)
        confidence = torch.full(committed.shape, torch.nan, device=seen.device)
        confidence[rows, columns] = predictions.confidence[chosen].float()
        self._index += 1
        stop, predicted = self._lines.there(block.bounds[1]), self._predictor.predicted
        keeps = frozenset() if self._hooks is None else self._hooks.keeps
        step = Step(
            index=self._index - 1,
            block=block.number,
            block_range=block.bounds,
            queries=fed,
            seen=seen,
            canvas=filling.tokens[:, :stop].clone(),
            committed=committed[:, :stop],
            confidence=confidence[:, :stop],
            groups=groups,
            takes_part=takes_part,
            computed=(real.sum(-1).double() if refreshed is None else refreshed.computed).view(-1, len(seen)).sum(0),
            held_bytes=None if refreshed is None else refreshed.cache.nbytes,
            removed=None if self._forward.removed is None else self._forward.removed.first(len(seen)),
            logits=predicted[1] if "logits" in keeps and predicted is not None else None,
            logit_columns=predicted[0] if "logits" in keeps and predicted is not None else None,
            hidden=None if self._forward.hidden is None else self._forward.hidden[:, : len(seen)],
        )
        if self._hooks is not None:
            first = 0 if self._kept is None else block.bounds[0]
            step = _changed(step, self._hooks, filling, before[:, :stop], first)
        filling.stop(after_block=False)
        return replace(step, canvas=filling.tokens[:, :stop].clone())


def _changed(step: Step, hooks: Intervening, filling: Filling, before: torch.Tensor, first: int) -> Step:
    """The step with what a hook leaves of its tokens; before: those in front of the pass, (batch, position). It may
    change none left of the column `first`."""
    left = hooks.tokens(step, step.canvas.clone())
    now = torch.where(step.takes_part.unsqueeze(-1), left, step.canvas)
    filling.rewrite(now, first)
    own = step.committed & (now == step.canvas)
    return replace(
        step,
        committed=(now != before) & (now != filling.mask_id),
        confidence=step.confidence.masked_fill(~own, torch.nan),
    )


class _Refreshed:
    """A cache that computes some columns anew, and what its rule is told; with guidance every row twice."""

    def __init__(self, model: Model, rule: RefreshRule, filling: Filling, real: torch.Tensor) -> None:
        self.cache = RefreshingCache(model, rule, real)
        self._filling, self._real = filling, real
        self._new = torch.zeros_like(filling.generated)
        self._surest = torch.zeros(self._new.shape, dtype=torch.float64, device=real.device)

    def plan(self, block: Block, open_now: torch.Tensor, index: int) -> torch.Tensor:
        """Which of the open positions, (batch, position), may be committed after the next pass."""
        filling, twice = self._filling, len(self._real) // len(self._new)
        canvas = Canvassed(
            index=index,
            step=block.step,
            block=block.bounds,
            real=self._real,
            generated=filling.generated.repeat(twice, 1),
            masked=(filling.generated & (filling.tokens == filling.mask_id)).repeat(twice, 1),
            new=self._new.repeat(twice, 1),
            open=open_now.repeat(twice, 1),
            confidence=self._surest.repeat(twice, 1),
        )
        return self.cache.plan(canvas)[: len(open_now)]

    def saw(self, predictions: Predictions, committed: torch.Tensor) -> None:
        """What the pass predicted, and what was committed, (batch, position) boolean."""
        self._surest[predictions.rows, predictions.columns] = predictions.confidence.double()
        self._new = committed

    @property
    def computed(self) -> torch.Tensor:
        """Columns computed in the latest pass, (row fed,), means over the layers."""
        return self.cache.computed / len(self.cache.held)
