"""The loop of DiffusionGemma: canvases of random tokens, refined until the model keeps what it draws.

An encoder pass reads the prompt, later the canvas before, causally, and writes their keys. Decoder passes then see
those keys and the new canvas in both directions. Each draws a token for every position: the surest keep theirs, all
others get new random tokens, whatever they kept before. The decoder is told what it predicted in the pass before
(self-conditioning). What is written in the end is the likeliest token of the last pass, not the one that was drawn.

    for step in denoise(model, "Question: ...", Renoising(gen_length=256)):
        step.noise.kept, step.noise.self_conditioning

The tokens are those of transformers' own `generate`, noise included, for a prompt that is run alone. A row has noise of
its own, drawn on the CPU, so that it is the same in any batch and on any device; each step draws a number a token of
the vocabulary and position.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch.distributions import Categorical
from transformers import DynamicCache

from sinkscope.attention import GROUPS, NOT_COUNTED
from sinkscope.decoding.canvas import Canvas
from sinkscope.decoding.forward import Feed, StackedForward
from sinkscope.decoding.protocols import Intervention, Noise, Step
from sinkscope.decoding.sampling import row_generators
from sinkscope.decoding.settings import Renoising
from sinkscope.families import Model

PROMPT, COMMITTED, KEPT, CHANGED = (
    GROUPS.index(name) for name in ("prompt", "committed", "block-committed", "block-masked")
)


@dataclass(frozen=True, kw_only=True)
class _Refined:
    """What one decoder pass made of a canvas."""

    drawn: torch.Tensor  # (batch, canvas)
    likeliest: torch.Tensor  # (batch, canvas)
    probability: torch.Tensor  # (batch, canvas) of the likeliest
    entropy: torch.Tensor  # (batch, canvas) nats
    kept: torch.Tensor  # (batch, canvas) boolean


def renoise_canvas(
    model: Model, canvas: Canvas, settings: Renoising, seeds: Sequence[int], intervention: Intervention | None
) -> Iterator[Step]:
    """The steps of a canvas of whole canvases of the model; nothing is checked. seeds: one a row."""
    return _Loop(model, canvas, settings, seeds, intervention).steps()


class _Loop:
    """One generation: the text as it is now, and what is fixed about it."""

    def __init__(
        self,
        model: Model,
        canvas: Canvas,
        settings: Renoising,
        seeds: Sequence[int],
        intervention: Intervention | None,
    ) -> None:
        assert model.family.blocks is not None
        self._length = model.family.blocks.length
        self._settings = settings
        self._canvas = canvas
        self._tokens = canvas.tokens.clone()
        self._forward = StackedForward(model, canvas, intervention, seeds)
        self._cache = DynamicCache(config=model.network.config.get_text_config())
        self._noise = row_generators(seeds)
        self._vocabulary = model.network.config.get_text_config().vocab_size
        self._pad = model.family.pad_token_id
        self._ends = torch.tensor(model.family.eos_token_ids, dtype=torch.long, device=self._tokens.device)
        self._going = torch.ones(len(self._tokens), dtype=torch.bool, device=self._tokens.device)
        self._index = 0

    @torch.no_grad()
    def steps(self) -> Iterator[Step]:
        """All steps, canvas after canvas, until every row has ended."""
        start, width = self._canvas.prompt_length, self._tokens.shape[1]
        for block, first in enumerate(range(start, width, self._length)):
            bounds = (first, first + self._length)
            yield self._encode(block, bounds)
            yield from self._refine(block, bounds)
            self._going = self._going & ~torch.isin(self._tokens[:, slice(*bounds)], self._ends).any(-1)
            if not bool(self._going.any()):
                return

    def _encode(self, block: int, bounds: tuple[int, int]) -> Step:
        """Read what is finished and not in the cache; then the canvas is filled with noise."""
        fed = (self._cache.get_seq_length(), bounds[0])
        real = self._canvas.real[:, slice(*fed)]
        groups = torch.where(real & self._going.unsqueeze(-1), PROMPT if block == 0 else COMMITTED, NOT_COUNTED)
        seen = self._tokens[:, : fed[1]].clone()
        self._forward(Feed(seen, fed, (fed[1] - 1, fed[1]), groups, self._cache, finished=True))
        self._forward.told = None
        self._tokens[:, slice(*bounds)] = self._random(self._going)
        return self._step(block, bounds, fed, seen, groups, self._going)

    def _refine(self, block: int, bounds: tuple[int, int]) -> Iterator[Step]:
        """The decoder passes of one canvas. A row whose canvas has ended waits for the others."""
        place, batch = slice(*bounds), len(self._tokens)
        running = self._going.clone()
        kept = torch.zeros(batch, self._length, dtype=torch.bool, device=self._tokens.device)
        likeliest: list[torch.Tensor] = []
        for left in range(self._settings.steps, 0, -1):
            groups = torch.where(kept, KEPT, CHANGED).masked_fill(~running.unsqueeze(-1), NOT_COUNTED)
            seen = self._tokens[:, : bounds[1]].clone()
            logits = self._tempered(self._forward(Feed(seen, bounds, bounds, groups, self._cache)), left)
            now = self._look(logits, running)
            kept = now.kept & running.unsqueeze(-1)
            ended = running & (self._settled(now, likeliest) | (left == 1))
            likeliest.append(now.likeliest)
            fresh = torch.where(kept, now.drawn, self._random(running))
            written = torch.where(ended.unsqueeze(-1), self._written(now.likeliest), fresh)
            self._tokens[:, place] = torch.where(running.unsqueeze(-1), written, self._tokens[:, place])
            self._forward.told = logits.to(self._forward.told_dtype)
            yield self._step(block, bounds, bounds, seen, groups, running, now, ended)
            running = running & ~ended
            if not bool(running.any()):
                return

    def _tempered(self, logits: torch.Tensor, left: int) -> torch.Tensor:
        """Divided by the temperature of a pass after which `left` - 1 are left; in float32, as in transformers."""
        settings = self._settings
        part = torch.tensor(left, dtype=torch.int32, device=logits.device) / settings.steps
        return logits / (settings.t_min + (settings.t_max - settings.t_min) * part)

    def _look(self, logits: torch.Tensor, running: torch.Tensor) -> _Refined:
        """Draw a token for every position, and say which positions keep theirs."""
        probabilities = torch.softmax(logits, dim=-1, dtype=torch.float32)
        entropy: torch.Tensor = Categorical(logits=logits).entropy()  # type: ignore[no-untyped-call]
        ordered, order = torch.sort(entropy, dim=-1, stable=True)
        fits = ordered.cumsum(-1) - ordered <= self._settings.entropy_bound
        # The way in which `torch.multinomial` draws one token.
        races = [
            torch.empty(one.shape).exponential_(generator=noise) if runs else torch.ones(one.shape)
            for one, noise, runs in zip(probabilities, self._noise, running.tolist(), strict=True)
        ]
        likeliest = logits.argmax(-1)
        return _Refined(
            drawn=(probabilities / torch.stack(races).to(probabilities.device)).argmax(-1),
            likeliest=likeliest,
            probability=probabilities.gather(-1, likeliest.unsqueeze(-1)).squeeze(-1),
            entropy=entropy,
            kept=torch.zeros_like(fits).scatter(-1, order, fits),
        )

    def _settled(self, now: _Refined, before: Sequence[torch.Tensor]) -> torch.Tensor:
        """Rows (batch,) whose canvas needs no further pass: the likeliest tokens stay, and are sure."""
        span, sure = self._settings.stability_threshold, self._settings.confidence_threshold
        if span is None or sure is None or len(before) < span:
            return torch.zeros_like(self._going)
        stays = [(one == now.likeliest).all(-1) for one in before[len(before) - span :]]
        return torch.stack([now.entropy.mean(-1) < sure, *stays]).all(0)

    def _written(self, likeliest: torch.Tensor) -> torch.Tensor:
        """What is written of a finished canvas: padding after an end of text."""
        ends = torch.isin(likeliest, self._ends).long()
        return likeliest.masked_fill(ends.cumsum(-1) - ends > 0, self._pad)

    def _random(self, rows: torch.Tensor) -> torch.Tensor:
        """Uniform tokens (batch, canvas) for these rows (batch,); padding for the others."""
        size = (1, self._length)
        drawn = [
            torch.randint(self._vocabulary, size, generator=noise) if runs else torch.full(size, self._pad)
            for noise, runs in zip(self._noise, rows.tolist(), strict=True)
        ]
        return torch.cat(drawn).to(self._tokens.device)

    def _step(
        self,
        block: int,
        bounds: tuple[int, int],
        fed: tuple[int, int],
        seen: torch.Tensor,
        groups: torch.Tensor,
        takes_part: torch.Tensor,
        now: _Refined | None = None,
        ended: torch.Tensor | None = None,
    ) -> Step:
        """now: what a decoder pass made; None of an encoder pass. ended: rows whose canvas is written now."""
        canvas, place = self._tokens[:, : bounds[1]].clone(), slice(*bounds)

        def laid_out(values: torch.Tensor | None, missing: torch.Tensor) -> torch.Tensor:
            whole = missing.to(canvas.device).expand_as(canvas).clone()
            if values is not None:
                whole[:, place] = values
            return whole

        no, nothing = torch.tensor(False), torch.tensor(torch.nan)
        committed = None
        if now is not None and ended is not None:
            # Up to the end of text: behind it stands padding that nobody predicted.
            committed = (self._written(now.likeliest) == now.likeliest) & ended.unsqueeze(-1)
        all_committed = laid_out(committed, no)
        sure = laid_out(None if now is None else now.probability, nothing)
        self._index += 1
        return Step(
            index=self._index - 1,
            block=block,
            block_range=bounds,
            queries=fed,
            seen=seen,
            canvas=canvas,
            committed=all_committed,
            confidence=sure.masked_fill(~all_committed, torch.nan),
            groups=groups,
            takes_part=takes_part,
            removed=self._forward.removed,
            noise=Noise(
                encoder=now is None,
                kept=laid_out(None if now is None else now.kept, no),
                predicted=laid_out(None if now is None else now.likeliest, torch.tensor(-1)),
                entropy=laid_out(None if now is None else now.entropy, nothing),
                self_conditioning=laid_out(None if now is None else self._forward.strength, nothing),
            ),
        )
