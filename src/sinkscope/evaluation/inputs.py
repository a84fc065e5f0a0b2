"""What the likelihood measures take: checked before the first pass, and sorted into batches.

Costs a look at every token. Misleads: texts are encoded as prompts are, so a tokenizer that puts a token in front of a
prompt puts it in front of a text.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sinkscope.decoding import Prompts, canvas, encode_prompts
from sinkscope.decoding.canvas import split_prompts, vocabulary_size
from sinkscope.decoding.coupling import takes_padding
from sinkscope.decoding.protocols import check_intervention
from sinkscope.errors import TrainedLengthWarning, UserError
from sinkscope.families import Model
from sinkscope.interventions import MaskSinks

Observer = Callable[[int], None]
"""Called after every batch with the number of texts done so far."""


def encode_texts(model: Model, texts: Prompts) -> list[list[int]]:
    """Token ids of each text. Raises `UserError` where there is none, and as `encode_prompts` does."""
    if not split_prompts(texts):
        raise UserError("no texts were given; give at least one")
    return encode_prompts(model, texts)


def token_rows(model: Model, rows: Sequence[Any], name: str) -> list[list[int]]:
    """Token ids as given, each row checked. `name`: how a message calls a row.

    Raises `UserError` for text, and for ids outside the vocabulary.
    """
    vocabulary = vocabulary_size(model)
    checked = []
    for number, row in enumerate(rows):
        if isinstance(row, str):
            raise UserError(f"{name} {number} is text, token ids were wanted; encode it with the model's tokenizer")
        tokens = [int(token) for token in row]
        wrong = [token for token in tokens if not 0 <= token < vocabulary]
        if wrong:
            raise UserError(
                f"{name} {number} holds token id {wrong[0]}, the model's vocabulary has ids 0 to {vocabulary - 1}"
            )
        checked.append(tokens)
    return checked


def mask_token(model: Model, instead: str) -> int:
    """The mask token's id. `instead`: what serves a model that has none; named in the `UserError`."""
    return canvas.mask_token(model, f"is autoregressive and has no mask token; use `{instead}`")


def check_lengths(model: Model, lengths: Sequence[int], kind: str = "text", advice: str = "shorten it") -> None:
    """Refuse texts longer than the context. `kind`: how a message calls one; `advice`: what it says to do."""
    longest, context = max(lengths), model.family.max_length
    if longest > context:
        which = f"the {kind}" if len(lengths) == 1 else f"{kind} {list(lengths).index(longest)}"
        raise UserError(f"{which} has {longest} tokens, the context of {model.name} is {context}; {advice}")


def warn_beyond_training(model: Model, lengths: Sequence[int]) -> None:
    """Warn, with `TrainedLengthWarning`, of texts longer than any in the model's training."""
    longest, trained = max(lengths), model.family.trained_length
    if trained is not None and longest > trained:
        message = (
            f"{model.name} was trained on texts of at most {trained} tokens; one here has {longest}, and what stands "
            f"after the first {trained} may mean nothing"
        )
        warnings.warn(message, TrainedLengthWarning, stacklevel=3)


def check_single_pass(model: Model, intervention: MaskSinks | None, lengths: Sequence[int]) -> None:
    """Refuse an intervention that needs a step before, where every text of these lengths is read in one pass."""
    check_intervention(intervention, model, fewest=min(lengths), most=max(lengths), passes=1)


def batches(lengths: Sequence[int], batch_size: int, alike: Sequence[object]) -> Iterator[list[int]]:
    """Numbers of texts to run together: of similar length, since padding is computed too, and equal in `alike`."""
    ranks = {group: rank for rank, group in enumerate(dict.fromkeys(alike))}
    batch: list[int] = []
    for number in sorted(range(len(lengths)), key=lambda number: (ranks[alike[number]], lengths[number])):
        if batch and (len(batch) == batch_size or alike[number] != alike[batch[0]]):
            yield batch
            batch = []
        batch.append(number)
    yield batch


def padded_batches(model: Model, lengths: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """As `batches`; of one length for a network that can't take padding."""
    return batches(lengths, batch_size, [0] * len(lengths) if takes_padding(model) else lengths)
