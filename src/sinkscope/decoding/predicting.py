"""What open positions of a canvas would become: one pass of the network, and the sampler over its logits."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from sinkscope.decoding.blockwise import keeps_blocks
from sinkscope.decoding.canvas import Canvas
from sinkscope.decoding.choice import CONFIDENCE, SCHEDULES, Block, Candidates, Predictions
from sinkscope.decoding.filling import Filling
from sinkscope.decoding.forward import Feed, Forward, guided
from sinkscope.decoding.protocols import Moment
from sinkscope.decoding.sampling import Sampler, gumbel, uniform_noise
from sinkscope.decoding.settings import Denoising
from sinkscope.families import Model


class Predictor:
    """What open positions would become, by the network and the sampler."""

    def __init__(
        self,
        model: Model,
        canvas: Canvas,
        settings: Denoising,
        forward: Forward,
        noise: Sequence[torch.Generator],
    ) -> None:
        assert model.family.mask_token_id is not None
        self._settings = settings
        self._forward = forward
        self._noise = noise
        self._real = canvas.real
        self._shift = model.family.logit_shift
        hooks = forward.intervening
        self._whole_block = hooks is not None and hooks.sees_logits
        # A shifted block's first column is predicted by the pass that writes what lies before it.
        self._carries = keeps_blocks(model, settings) and model.family.logit_shift
        self._carried: torch.Tensor | None = None  # (batch, 1, token)
        self.predicted: tuple[tuple[int, int], torch.Tensor] | None = None
        """Columns of the latest pass that were predicted, first and one past the last, and their logits (batch, column,
        token) as they were chosen from."""
        self._sampler = Sampler(
            temperature=settings.temperature,
            top_p=settings.top_p,
            top_k=settings.top_k,
            suppress=settings.suppress,
            never=(model.family.mask_token_id,),
            tempered=SCHEDULES[settings.schedule].tempered,
        )

    def predict(
        self,
        filling: Filling,
        seen: torch.Tensor,
        open_now: torch.Tensor,
        fed: tuple[int, int],
        groups: torch.Tensor,
        block: Block,
        index: int,
        finished: bool,
    ) -> Predictions:
        """Predict every open position, (batch, position) boolean, of the tokens seen, in the forward pass `index`."""
        rows, columns = open_now.nonzero(as_tuple=True)
        wanted = (fed[1], fed[1] + 1) if finished else self._wanted(columns, fed, block)
        logits = self._logits(filling, Feed(seen, fed, wanted, groups, block.cache, finished=finished))
        if self._carries and finished:
            self._carried = logits
        elif self._carries and self._carried is not None and wanted[0] == fed[0]:
            logits = torch.cat([self._carried, logits[:, 1:]], dim=1)
        if self._forward.intervening is not None:
            moment = Moment(index=index, tokens=seen, columns=wanted, open=open_now[:, : seen.shape[1]])
            logits = self._forward.intervening.logits(moment, logits)
        self.predicted = wanted, logits
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
        if self._settings.alg_temp is not None:  # Dream's draw of positions, torch.multinomial there
            order = order.double() / self._settings.alg_temp + gumbel(order.shape, rows, self._noise).to(order.device)
        return Predictions(rows=rows, columns=columns, tokens=tokens, confidence=confidence, order=order)

    def _wanted(self, columns: torch.Tensor, fed: tuple[int, int], block: Block) -> tuple[int, int]:
        """Columns whose logits are computed: those from the first open one to the last, and where an intervention sees
        logits all of the block that a pass over these columns predicts."""
        needed = (int(columns.min()), int(columns.max()) + 1) if len(columns) else None
        if not self._whole_block:
            return needed or (fed[0], fed[0] + 1)
        start, stop = max(block.bounds[0], fed[0]), min(block.bounds[1], fed[1])
        carried = self._carries and fed[0] == block.bounds[0]
        if self._shift and 0 < start == fed[0] and not carried and start + 1 < stop:
            start += 1  # the row before it, which predicts it, is not fed
        return (start, stop) if needed is None else (min(start, needed[0]), max(stop, needed[1]))

    def _logits(self, filling: Filling, feed: Feed) -> torch.Tensor:
        """Logits (batch, wanted column, token), guided if asked for."""
        if self._settings.cfg_scale == 0:
            return self._forward(feed)
        seen = feed.tokens
        there = slice(0, seen.shape[1])
        told = (self._real & ~filling.generated)[:, there]
        if self._settings.cfg_keep_tokens:
            told = told & ~torch.isin(seen, torch.tensor(self._settings.cfg_keep_tokens, device=seen.device))
        blind = seen.masked_fill(told, filling.mask_id)
        both = replace(feed, tokens=torch.cat([seen, blind]), groups=feed.groups.repeat(2, 1))
        return guided(self._forward(both), self._settings.cfg_scale)
