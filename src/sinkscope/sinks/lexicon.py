"""What a token is: its text as the tokenizer spells it, read back, and its class.

Six classes part all (step, position) cells, tried in this order: `mask` (the mask token), `special` (a listed special
token, or text of the form <|name|>), `newline` (white space with a line break), `punctuation` (nothing but punctuation
and symbols), `prompt` (any other token of the prompt), `other` (any other generated token).

Spellings that are read: byte-level BPE ("Ċ" is a line break, "Ġ" a space), SentencePiece ("▁", "<0x0A>"), WordPiece
("##."). Without texts (a folder without tokenizer) tokens are shown as numbers and only mask, special, prompt and
other are told apart.

Where it misleads: a tokenizer that really contains "Ġ" as a letter is read as if it meant a space.
"""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from sinkscope.errors import UserError, refusing

CLASSES = ("mask", "special", "newline", "punctuation", "prompt", "other")

_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_NAMED = re.compile(r"<\|[^|]*\|>")


@dataclass(frozen=True)
class Lexicon:
    """A sample's token texts and the ids that are special."""

    texts: Mapping[int, str]
    mask_token_id: int | None
    special_ids: frozenset[int]
    prompt_length: int

    @classmethod
    def of(cls, sample: xr.Dataset) -> "Lexicon":
        """Read from a sample's attributes; what is missing there is taken as unknown."""
        with refusing("what a trace says of its model and tokens is damaged", "record it again"):
            model = model_attributes(sample)
            mask = model.get("mask_token_id")
            return cls(
                texts={int(token): str(text) for token, text in (sample.attrs.get("tokens") or {}).items()},
                mask_token_id=None if mask is None else int(mask),
                special_ids=frozenset(int(token) for token in model.get("special_ids") or ()),
                prompt_length=int(sample.attrs.get("prompt_length", 0)),
            )

    def text(self, token: int) -> str:
        """The token's text with the tokenizer's spelling undone, or its number in angle brackets."""
        return plain_text(self.texts[token]) if token in self.texts else f"<{token}>"

    def class_of(self, token: int) -> str:
        """The token's class wherever it stands: as in `CLASSES`, but never "prompt"."""
        if token == self.mask_token_id:
            return "mask"
        text = self.texts.get(token, "")
        if token in self.special_ids or _NAMED.fullmatch(text):
            return "special"
        return _class_of_text(plain_text(text))

    def classes(self, canvas: xr.DataArray) -> xr.DataArray:
        """Index into `CLASSES` of every cell of a canvas of token ids `(step, position)`."""
        ids, where = np.unique(canvas.values, return_inverse=True)
        of_id: NDArray[np.int8] = np.array([CLASSES.index(self.class_of(int(token))) for token in ids], dtype=np.int8)
        kinds = canvas.copy(data=of_id[where].reshape(canvas.shape))
        in_prompt = (kinds == CLASSES.index("other")) & (canvas["position"] < self.prompt_length)
        return kinds.where(~in_prompt, CLASSES.index("prompt")).astype(np.int8)


def model_attributes(sample: xr.Dataset) -> Mapping[str, Any]:
    """The model's record among a sample's attributes; empty where there is none."""
    record: Mapping[str, Any] = sample.attrs.get("sinkscope") or {}
    model: Mapping[str, Any] = record.get("model") or {}
    return model


def require_same_model(sample: xr.Dataset, first: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Name, revision, layers and heads of a sample's model. Raises `UserError` where the first sample's were others."""
    model = model_attributes(sample)
    sizes = {dim: sample.sizes.get(dim, 0) for dim in ("layer", "head")}
    here = {"name": model.get("name"), "revision": model.get("revision"), **sizes}
    if first is not None and here != first:
        raise UserError(
            f"sample {sample.attrs.get('id')!r} is of another model than the first, {here} against {first}: summarise "
            "the traces one by one"
        )
    return here


def plain_text(spelling: str) -> str:
    """A tokenizer's spelling of a token, read back: "Ġthe" is " the", "Ċ" and "<0x0A>" are a line break."""
    byte = _BYTE.fullmatch(spelling)
    if byte:
        return bytes([int(byte[1], 16)]).decode("latin-1")
    if len(spelling) > 2 and spelling.startswith("##"):
        return spelling[2:]
    return _undo_byte_level(spelling).replace("\u2581", " ")


def _undo_byte_level(spelling: str) -> str:
    """Byte-level BPE writes every byte as one visible letter; any other spelling comes back as it is."""
    try:
        return bytes(_BYTE_OF[letter] for letter in spelling).decode("utf-8")
    except (KeyError, UnicodeDecodeError):
        return spelling


def _byte_letters() -> dict[str, int]:
    """Visible Latin-1 letters stand for themselves; the other 68 bytes, in order, for U+0100 onwards."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(0x100 + rank): byte for rank, byte in enumerate(hidden)}


_BYTE_OF = _byte_letters()


def _class_of_text(text: str) -> str:
    bare = text.strip()
    if not bare:
        return "newline" if "\n" in text or "\r" in text else "other"
    if all(unicodedata.category(letter)[0] in "PS" for letter in bare):
        return "punctuation"
    return "other"
