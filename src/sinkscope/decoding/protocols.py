"""What a decoding loop asks of an intervention and of a compression, and what it yields after every pass.

The interventions themselves are in `sinkscope.interventions`, the compressions in `sinkscope.compression`; loops only
carry them. Before each pass a loop tells an intervention what the model is about to see (`PassContext`), and after it
asks what was taken away (`MaskingStats`). A compression makes the caches of a loop.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from transformers import Cache, DynamicCache

from sinkscope.attention.cutting import Cutter
from sinkscope.decoding.caches import BlockLayer, BlockPlace, HeldLayer
from sinkscope.decoding.canvas import Canvas
from sinkscope.errors import NothingMaskedWarning, UserError
from sinkscope.families import Model


@dataclass(frozen=True, kw_only=True, eq=False)
class PassContext:
    """The pass that is about to be made."""

    tokens: torch.Tensor  # (batch, position) token ids that are there to be attended to
    fed: tuple[int, int]  # columns whose queries are computed, first and one past the last
    groups: torch.Tensor  # (batch, query) index into `attention.GROUPS`; -1: padding, or a row that waits for others


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskingStats:
    """What was taken away: sums over layers, heads and passes, (batch,) each. Divide by `units`, or by `keys`.

    mass: attention removed, the share that the affected queries would have paid to the cut keys in this very pass.
    wanted_mass: received attention of the sinks, by the map that they were found in; chosen_mass: of the keys that were
    cut, sinks or controls, by the same map.
    """

    units: torch.Tensor  # layers and heads with sinks by the rule
    keys: torch.Tensor  # keys cut
    mask_keys: torch.Tensor  # of these, keys that hold the mask token
    repeated_keys: torch.Tensor  # of these, keys that the same layer and head lost in the pass before as well
    mass: torch.Tensor
    wanted_mass: torch.Tensor
    chosen_mass: torch.Tensor

    @classmethod
    def nothing(cls, rows: int, device: torch.device) -> MaskingStats:
        """A pass without any cut."""
        return cls(**dict.fromkeys(cls.names(), torch.zeros(rows, dtype=torch.float64, device=device)))

    @classmethod
    def from_sums(cls, sums: Mapping[str, float]) -> MaskingStats:
        """One row of these sums."""
        return cls(**{name: torch.tensor([sums[name]], dtype=torch.float64) for name in cls.names()})

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(one.name for one in fields(cls))

    def plus(self, other: MaskingStats) -> MaskingStats:
        return MaskingStats(**{name: value + vars(other)[name] for name, value in vars(self).items()})

    def first(self, rows: int) -> MaskingStats:
        """The first rows alone: with guidance, those with the prompt."""
        return self._each(lambda value: value[:rows])

    def row(self, number: int) -> MaskingStats:
        return self._each(lambda value: value[number : number + 1])

    def of(self, rows: torch.Tensor) -> MaskingStats:
        """The same, zero for rows that are not in `rows` (batch,) boolean."""
        return self._each(lambda value: value * rows)

    def whole(self) -> MaskingStats:
        """All rows in one, (1,) each."""
        return self._each(lambda value: value.sum(0, keepdim=True))

    def _each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> MaskingStats:
        return MaskingStats(**{name: change(value) for name, value in vars(self).items()})

    def to_dict(self) -> dict[str, float | None]:
        """Means over all rows: keys, mass, wanted and chosen mass for a layer and head with sinks, and shares of the
        keys. None where nothing was cut."""
        total = {name: float(value.sum()) for name, value in vars(self).items()}

        def mean(name: str, over: str) -> float | None:
            return total[name] / total[over] if total[over] else None

        return {
            "keys": mean("keys", "units"),
            "mass": mean("mass", "units"),
            "sink_mass": mean("wanted_mass", "units"),
            "cut_mass": mean("chosen_mass", "units"),
            "mask_share": mean("mask_keys", "keys"),
            "repeated_share": mean("repeated_keys", "keys"),
        }


def added(removed: MaskingStats | None, more: MaskingStats | None) -> MaskingStats | None:
    """Sums of both; None stands for a pass without an intervention."""
    if removed is None or more is None:
        return removed or more
    return removed.plus(more)


@dataclass(frozen=True, kw_only=True, eq=False)
class Moment:
    """What a pass has predicted, before tokens are chosen from it."""

    index: int  # number of the forward pass, from 0
    tokens: torch.Tensor  # (batch, position) token ids that the model saw
    columns: tuple[int, int]  # columns that the logits predict, first and one past the last
    open: torch.Tensor  # (batch, position) boolean: positions that may be committed now


KEPT = ("logits", "hidden")
"""What a step can carry besides, see `Step`."""


class Intervening:
    """An intervention at work on one canvas: what it does before, in and after each pass.

    Here it does nothing; each intervention says what it does in place of that.
    """

    @property
    def cutter(self) -> Cutter | None:
        """Who decides which keys are cut from attention; None: nobody."""
        return None

    @property
    def sees_logits(self) -> bool:
        """Whether it wants the logits of a whole block, not of its open positions alone."""
        return False

    @property
    def keeps(self) -> frozenset[str]:
        """What steps carry for it, of `KEPT`."""
        return frozenset()

    def begin(self, occasion: PassContext) -> None:
        """The next pass is about to be made."""

    def finish(self) -> MaskingStats | None:
        """What the pass just made lost, for each row of the canvas; None where nothing can be cut."""
        return None

    def logits(self, moment: Moment, logits: torch.Tensor) -> torch.Tensor:
        """The logits (batch, column, token) from which tokens are chosen, guided ones where guidance is on."""
        del moment
        return logits

    def tokens(self, step: Step | None, canvas: torch.Tensor) -> torch.Tensor:
        """The tokens (batch, position) that stand after a step; None: before the first."""
        del step
        return canvas


@runtime_checkable
class Intervention(Protocol):
    """Something that may cut keys from attention, change logits and change tokens while a model generates."""

    @property
    def idle(self) -> bool:
        """Whether it changes nothing at all; then nothing of it is run."""

    @property
    def changes(self) -> frozenset[str]:
        """What it changes, of "attention", "logits" and "tokens". Where it is attention, every pass tells what was
        taken away."""

    @property
    def clean_copy(self) -> bool:
        """Whether each row must be accompanied by a copy that loses nothing; twice the work."""

    def check(self, model: Model, *, fewest: int, most: int, passes: int) -> None:
        """Raise `UserError` for what can't be done to this model, or would change nothing. fewest, most: numbers of
        keys in a row of attention from which some are cut. passes: the most that a text takes."""

    def start(self, model: Model, canvas: Canvas, seeds: Sequence[int], copies: int) -> Intervening:
        """Begin on a canvas. The last `copies` of its rows are copies that lose nothing."""

    def to_dict(self) -> dict[str, Any]:
        """Its settings as JSON."""


_Kind = TypeVar("_Kind", bound=Intervention)


def active(intervention: _Kind | None) -> _Kind | None:
    """The intervention; None where it changes nothing. Raises `UserError` for what is no intervention."""
    if intervention is None:
        return None
    if not isinstance(intervention, Intervention):
        raise UserError(
            f"an intervention is None, MaskSinks(...) or Hooks(...), got {intervention!r}; write MaskSinks(that)"
        )
    return None if intervention.idle else intervention


def check_intervention(intervention: Intervention | None, model: Model, *, fewest: int, most: int, passes: int) -> None:
    """Raise `UserError` for what is no intervention, and for one that can't be made where texts are read, by no loop;
    see `Intervention.check`."""
    masking = active(intervention)
    if masking is None:
        return
    if masking.changes != {"attention"}:
        raise UserError("this measure reads texts, and hooks are asked where a model writes; take MaskSinks alone")
    masking.check(model, fewest=fewest, most=most, passes=passes)


def warn_if_nothing(removed: MaskingStats | None) -> None:
    """Warn, with `NothingMaskedWarning`, where an intervention took nothing away in a whole run."""
    if removed is not None and not bool(removed.mass.any()):
        message = "nothing was masked: no key was marked in the steps, layers, heads and classes named; name others"
        warnings.warn(message, NothingMaskedWarning, stacklevel=3)


@dataclass(frozen=True, kw_only=True, eq=False)
class Noise:
    """What a pass of a renoising model did to its canvas, (batch, position) each; nothing elsewhere and in the pass of
    the encoder."""

    encoder: bool  # whether the pass was the encoder's: causal, over what is finished
    kept: torch.Tensor  # boolean: keeps the token that was drawn; the others of the canvas get random ones
    predicted: torch.Tensor  # the likeliest token, which is written if the canvas ends here; -1 elsewhere
    entropy: torch.Tensor  # of the prediction at the step's temperature, in nats; NaN elsewhere
    self_conditioning: torch.Tensor  # norm of the last prediction's part of the input over the token's; NaN elsewhere


@dataclass(frozen=True, kw_only=True)
class Step:
    """One forward pass and what was committed after it.

    Columns are those of the left-padded batch. An autoregressive canvas grows by one column a step: `seen` has one
    column less than `canvas`.
    """

    index: int  # number of the forward pass, from 0
    block: int  # number of the current block, from 0 (always 0 for autoregressive models)
    block_range: tuple[int, int]  # columns of the current block, first and one past the last
    queries: tuple[int, int]  # columns fed in this pass, first and one past the last; fewer than all with a cache
    seen: torch.Tensor  # (batch, position) the token ids that the model saw
    canvas: torch.Tensor  # (batch, position) the token ids after the commits
    committed: torch.Tensor  # (batch, position) boolean, the positions committed now
    confidence: torch.Tensor  # (batch, position) float32, confidence of what was committed now, NaN elsewhere
    groups: torch.Tensor  # (batch, query) index into `attention.GROUPS`; -1: padding, or a row that takes no part
    takes_part: torch.Tensor  # (batch,) boolean: rows that would make this pass alone too; the others are done
    computed: torch.Tensor | None = None  # (batch,) float64: columns without padding that a layer computed, on average,
    # with guidance of both passes; None where a loop does not count them
    held_bytes: int | None = None  # of a cache that computes some columns anew, all rows; None of others
    removed: MaskingStats | None = None  # what an intervention took from each row in this pass; None without one
    noise: Noise | None = None  # of a renoising model; None of all others
    logits: torch.Tensor | None = None  # (batch, column, token) that tokens were chosen from, if asked for
    logit_columns: tuple[int, int] | None = None  # the columns that they predict, first and one past the last
    hidden: torch.Tensor | None = None  # (layer + 1, batch, query, dim), the embeddings first, if asked for

    def add_to(self, removed: MaskingStats | None) -> MaskingStats | None:
        """What was removed before and now, of rows that take part; None where nobody intervenes."""
        return added(removed, None if self.removed is None else self.removed.of(self.takes_part))


@dataclass(frozen=True, kw_only=True)
class BlockLengths:
    """One row at one block, in tokens.

    prompt: of its prompt. before: in front of the block. context: whose keys the cache holds, and may drop. fed: whose
    keys every pass computes anew.
    """

    prompt: int
    before: int
    context: int
    fed: int


class BlockCompression(Protocol):
    """A compression in the block caches of one model."""

    def check(self, blocks: Sequence[BlockLengths]) -> None:
        """Raise `UserError` for what can't be done at these blocks."""

    def fewest_keys(self, lengths: BlockLengths) -> int:
        """The fewest keys that a layer attends to in a pass over the cache."""

    def layers(self, place: BlockPlace, seeds: Sequence[int]) -> Sequence[HeldLayer]:
        """Empty layers of a block's cache. seeds: one a row, for random choices."""


@runtime_checkable
class Compression(Protocol):
    """Something that makes caches which drop keys."""

    @property
    def prefix(self) -> tuple[int, ...]:
        """Token ids that the cache holds before any prompt is read; prompts go on after them."""

    def check(self, model: Model, lengths: Sequence[int]) -> None:
        """Raise `UserError` for what can't be done to this model, with prompts of these lengths in tokens."""

    def ready(self, model: Model) -> None:
        """Raise `UserError` for what is not there when the first pass is about to be made: a watcher, say."""

    def cache(self, model: Model, seeds: Sequence[int]) -> Cache:
        """A cache for these rows of a batch, with the prefix in it. seeds: one a row, for random choices."""

    def fewest_keys(self, model: Model, length: int) -> int:
        """The fewest keys that a layer may hold of a row whose prompt has `length` tokens, or more."""

    def for_blocks(self, model: Model) -> BlockCompression:
        """The same in the block caches of a diffusion model. Raises `UserError` for what can't be done there."""

    def to_dict(self) -> dict[str, Any]:
        """Its settings as JSON."""


def prefix_of(compression: Compression | None) -> tuple[int, ...]:
    """Tokens that are there before any prompt. Raises `UserError` for what is no compression."""
    if compression is None:
        return ()
    if not isinstance(compression, Compression):
        raise UserError(f"a compression is None, Compress(...) or a Prefix, got {compression!r}; write Compress(that)")
    return compression.prefix


def cache_for(compression: Compression | None, model: Model, seeds: Sequence[int]) -> Cache:
    """The cache of a decoding loop."""
    if compression is None:
        return DynamicCache(config=model.network.config)
    return compression.cache(model, seeds)


def block_layers(
    dropping: BlockCompression | None, model: Model, place: BlockPlace, seeds: Sequence[int]
) -> Sequence[HeldLayer]:
    """Empty layers of a block's cache."""
    if dropping is None:
        return [BlockLayer(place) for _ in range(model.shape.layers)]
    return dropping.layers(place, seeds)
