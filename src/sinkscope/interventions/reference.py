"""Values that stand in for those of masked keys: their mean over texts, or those of another text.

    MaskSinks(1, how="mean", reference=texts)
    MaskSinks(1, how="resample", reference=texts)

A zero is no value that a model ever sees there, so a model that is harmed by it need not have read anything from the
key: what harms it may be the zero. Two remedies are common, and scores stay as they are in both:

- mean ablation (Wang et al. 2022, arXiv 2211.00593): the mean value vector of the layer and kv head. The published one
  is taken over prompts of one template, position by position; free texts have no template, so here it is taken over all
  tokens of all texts.
- resample ablation (Chan et al. 2022, causal scrubbing; Zhang and Nanda 2023, arXiv 2309.16042, compare both with
  zero): the value vector at the same position of another text. One text is drawn for every prompt, for all layers,
  heads and steps of its generation, from the reference texts that are at least as long as its canvas.

Values are those of a plain pass over each text alone: as it is read by an autoregressive model, as a finished text by
a diffusion model. Costs: a pass a text, once a model for the mean; for resampling a pass for every text that is drawn
for a batch, and as much memory as the values of a cache.

Where it misleads: in an autoregressive model the first token sees itself alone. Texts that begin with the same token
have the same value there, so resampling a sink on <bos> changes nothing at all: that says that it carries nothing about
the text, not that nobody needs it. A diffusion model's canvas holds masks, whose values are not those of words in a
finished text; token ids with masks among them make a reference of unfinished ones. A mean over all tokens is far from
the value of a sink, which is often tiny. A prompt that is among the reference texts may be given its own values.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any
from weakref import WeakKeyDictionary

import torch

from sinkscope.attention.cutting import cutting
from sinkscope.attention.function import check_calls
from sinkscope.attention.given import Attention, Cut
from sinkscope.attention.watching import unobserved
from sinkscope.decoding.canvas import Canvas, Prompts, encode_prompts, lay_out, split_prompts
from sinkscope.decoding.forward import Feed, forward_for
from sinkscope.errors import UserError
from sinkscope.families import Model
from sinkscope.seeds import seed_from

MEAN, RESAMPLE = "mean", "resample"
_DIGEST = 12


@dataclass(frozen=True)
class Reference:
    """Texts that values are taken from, known by their digest.

    texts: each text, chat messages or token ids; None where a record keeps the digest alone, and nothing can be run.
    """

    count: int
    digest: str
    texts: tuple[Any, ...] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, given: "Reference | Prompts") -> "Reference":
        """Of texts as `generate` takes prompts, or of what `to_dict` gave. Raises `UserError` for what is neither, and
        for no text at all."""
        if isinstance(given, Reference):
            return given
        if isinstance(given, Mapping) and "input_ids" not in given:
            return cls._read(given)
        with _named():
            texts = tuple(_plain(one) for one in split_prompts(given))
        empty = next((number for number, one in enumerate(texts) if not one), None)
        if empty is not None or not texts:
            what = "no texts" if empty is None else f"an empty text, number {empty}"
            raise UserError(f"the reference holds {what}; give texts to take values from (--reference)")
        try:
            written = json.dumps(texts, sort_keys=True)
        except (TypeError, ValueError) as error:
            raise UserError("reference texts must be text, chat messages or token ids") from error
        return cls(len(texts), hashlib.sha256(written.encode()).hexdigest()[:_DIGEST], texts)

    @classmethod
    def _read(cls, kept: Mapping[Any, Any]) -> "Reference":
        count, digest = kept.get("texts"), kept.get("digest")
        if kept.keys() != {"texts", "digest"} or not isinstance(count, int) or not isinstance(digest, str):
            raise UserError(f"a reference is a list of texts, or a record of one, got {dict(kept)!r}")
        return cls(count, digest)

    def __str__(self) -> str:
        return f"{self.count} text{'s' * (self.count != 1)} {self.digest}"

    def to_dict(self) -> dict[str, Any]:
        """As JSON: how many texts, and their digest."""
        return {"texts": self.count, "digest": self.digest}

    def check(self, model: Model, *, longest: int) -> None:
        """Raise `UserError` for texts that the model can't read, and where none has as many tokens as `longest`."""
        lengths = list(map(len, self.encode(model)))
        if max(lengths) > model.family.max_length:
            raise UserError(
                f"reference text {lengths.index(max(lengths))} has {max(lengths)} tokens, the context of {model.name} "
                f"is {model.family.max_length}; shorten it"
            )
        if max(lengths) < longest:
            raise UserError(
                f"values are resampled at the same positions of another text, and texts here come to {longest} tokens: "
                f"the longest reference text has {max(lengths)}; give one that is long enough, or generate less"
            )

    def encode(self, model: Model) -> list[list[int]]:
        """Token ids of each text; looked up once a model. Raises `UserError` as `encode_prompts` does."""
        return _readings(model, self).rows


@contextmanager
def _named() -> Iterator[None]:
    """A mistake in a text is one of the reference, not of a prompt."""
    try:
        yield
    except UserError as error:
        raise UserError(f"of the reference texts, {error}") from error


def _plain(text: Any) -> Any:
    """A text as JSON; what is none is refused where it is written."""
    if isinstance(text, torch.Tensor) or hasattr(text, "tolist"):
        return text.tolist()
    return text if isinstance(text, str) or not isinstance(text, Sequence) else [_plain(one) for one in text]


@dataclass
class _Reading:
    """What is known of one reference in one model. means: each layer's, of the weights they were taken with."""

    tokenizer: object
    rows: list[list[int]]
    weights: object = None
    means: list[torch.Tensor] = field(default_factory=list)


_read: WeakKeyDictionary[torch.nn.Module, dict[str, _Reading]] = WeakKeyDictionary()
"""By network and digest: every batch of an experiment asks again, and texts are many."""


def _readings(model: Model, reference: Reference) -> _Reading:
    there = _read.setdefault(model.network, {})
    known = there.get(reference.digest)
    if known is not None and known.tokenizer is model.tokenizer:
        return known
    if reference.texts is None:
        raise UserError(f"of the reference {reference} only the digest was kept; give its texts again")
    with _named():
        rows = encode_prompts(model, list(reference.texts))
    there[reference.digest] = _Reading(model.tokenizer, rows)
    return there[reference.digest]


def check_reference(how: str, reference: object) -> None:
    """Raise `UserError` where values are to be taken from texts and there are none, and the other way round."""
    if how in (MEAN, RESAMPLE) and reference is None:
        raise UserError(
            f"how {how!r} takes values from texts, and there are none: give reference=[...] (--reference FILE)"
        )
    if how not in (MEAN, RESAMPLE) and reference is not None:
        raise UserError(
            f"how {how!r} takes no values from texts: leave the reference out (--reference), or take "
            f"{MEAN!r} or {RESAMPLE!r}"
        )


def stand_ins(
    how: str, reference: object, model: Model, canvas: Canvas, seeds: Sequence[int], seed: int
) -> list[torch.Tensor] | None:
    """What stands in for values of each layer's keys on a canvas, (row or 1, kv_head, column or 1, dim) each; None
    where nothing does. seeds: of the first rows; other rows are copies of these. seed: of what is drawn."""
    if not isinstance(reference, Reference):
        return None
    if how == MEAN:
        return mean_values(model, reference)
    return resampled_values(model, reference, canvas, seeds, seed)


def mean_values(model: Model, reference: Reference) -> list[torch.Tensor]:
    """Mean value vectors of each layer over all tokens of all texts, (1, kv_head, 1, dim) float64."""
    reading, weights = _readings(model, reference), _state(model)
    if not reading.means or reading.weights != weights:
        sums: list[torch.Tensor] = []
        for tokens in reading.rows:
            found = [one.double().sum(2, keepdim=True) for one in _values(model, tokens)]
            sums = [one + more for one, more in zip(sums, found, strict=True)] if sums else found
        total = sum(map(len, reading.rows))
        reading.means, reading.weights = [one / total for one in sums], weights
    return reading.means


def _state(model: Model) -> object:
    """Another one after the weights were changed or moved."""
    weights = list(model.network.parameters())
    return [(one.data_ptr(), one.dtype, 0 if one.is_inference() else one._version) for one in weights]


def resampled_values(
    model: Model, reference: Reference, canvas: Canvas, seeds: Sequence[int], seed: int
) -> list[torch.Tensor]:
    """Values of each layer at the positions of a canvas in a text drawn for each row, (row, kv_head, column, dim).

    seeds: of the first rows; the others are copies of these, in their order. What stands at padding means nothing.
    """
    rows, positions = reference.encode(model), canvas.positions()
    wanted = (positions.masked_fill(~canvas.real, 0).amax(-1) + 1).tolist()
    drawn = [_drawn(rows, wanted[number], f"{own}/{seed}") for number, own in enumerate(seeds)]
    of_texts = {number: _values(model, rows[number]) for number in sorted(set(drawn))}
    layers = len(of_texts[drawn[0]])
    values: list[list[torch.Tensor]] = [[] for _ in range(layers)]
    for row, places in enumerate(positions):
        number = drawn[row % len(drawn)]
        for layer, one in enumerate(of_texts[number]):
            values[layer].append(one[0, :, places.clamp(max=one.shape[2] - 1).to(one.device)])
    return [torch.stack(one) for one in values]


def _drawn(rows: Sequence[Sequence[int]], length: int, seed: str) -> int:
    """The number of a text of at least `length` tokens."""
    fitting = [number for number, tokens in enumerate(rows) if len(tokens) >= length]
    if not fitting:
        raise UserError(f"no reference text has {length} tokens, as many as a text here; give a longer one")
    return Random(seed_from(f"reference/{seed}")).choice(fitting)


class _Values:
    """A `Cutter` that cuts nothing and keeps each layer's values, (batch, kv_head, key, dim)."""

    needs_received = False

    def __init__(self) -> None:
        self.layers: list[torch.Tensor] = []

    def weights(self, attention: Attention) -> torch.Tensor:
        raise AssertionError(f"nobody asks what the keys of {attention.key.shape} received")

    def cut(self, attention: Attention, received: Callable[[], torch.Tensor]) -> Cut | None:
        del received
        self.layers.append(attention.value)
        return None

    def on_layer_end(self, received: torch.Tensor | None, removed: torch.Tensor | None) -> None:
        assert received is removed is None


def _values(model: Model, tokens: Sequence[int]) -> list[torch.Tensor]:
    """Values of each layer in a plain pass over one text, (1, kv_head, key, dim); nobody who watches sees the pass."""
    seen, length = _Values(), len(tokens)
    with unobserved(model.network), cutting(seen), torch.inference_mode(False), torch.no_grad():
        canvas = lay_out(model, [tokens], 0, model.family.pad_token_id)
        everyone = torch.zeros_like(canvas.tokens)
        forward_for(model, canvas, None, ())(Feed(canvas.tokens, (0, length), (length - 1, length), everyone))
    check_calls(len(seen.layers), model.shape.layers)
    return seen.layers
