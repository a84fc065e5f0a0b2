"""How one request is decoded: from `model_args` and a task's `generation_kwargs` to `Denoising` or `Decoding`.

What `model_args` (or a preset) say wins over what the task says, and that over the family's own way. Of a task count
`until`, the number of tokens, `do_sample`, `temperature`, `top_p` and `top_k`; anything else is refused.

Misleads: most tasks ask for greedy decoding, so a temperature in a preset overrules the task. And a task that names no
number of tokens gets 256 from an autoregressive model, as the harness's own models give it, but the family's canvas
from a diffusion model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from lm_eval.models.utils import normalize_gen_kwargs

from sinkscope.decoding import Decoding, Denoising, default_settings
from sinkscope.decoding.settings import Settings
from sinkscope.errors import UserError
from sinkscope.evaluation.harness.arguments import SAMPLING_TOP_K
from sinkscope.families import Model

TOKENS = 256
"""Of an autoregressive model where nobody says how many: the harness's default."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What a task asks for."""

    until: tuple[str, ...]
    """Where an answer ends."""
    tokens: int | None
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Fields of either settings class; empty for greedy decoding."""


def read_wish(asked: Mapping[str, Any], task: str) -> Wish:
    """A request's `generation_kwargs`. Raises `UserError` for what has no counterpart here."""
    named: dict[str, Any] = dict(normalize_gen_kwargs(dict(asked), default_max_gen_toks=0))
    until, tokens = named.pop("until"), named.pop("max_gen_toks")
    sampled, temperature = named.pop("do_sample"), float(named.pop("temperature", 0.0))
    chosen = {"top_p": named.pop("top_p", None), "top_k": named.pop("top_k", None) or None}
    if named.pop("num_beams", 1) != 1 or named:
        wrong = next(iter(named), "num_beams")
        raise UserError(f"task {task} asks for {wrong} in its generation_kwargs, which sinkscope has not; take it out")
    sampling = {"temperature": temperature, **chosen} if sampled and temperature > 0 else {}
    return Wish(until=tuple(text for text in until if text), tokens=tokens or None, sampling=sampling)


def check_kind(decoding: Mapping[str, Any], bidirectional: bool, name: str) -> None:
    """Raise `UserError` for settings that only the other kind of model has. name: of the model."""
    known = {one.name for one in fields(Denoising if bidirectional else Decoding)} - {"seed"}
    foreign = sorted(set(decoding) - known)
    if foreign:
        kind = "a mask-filling" if bidirectional else "an autoregressive"
        there = sorted(SAMPLING_TOP_K if one == "top_k" else one for one in known)
        raise UserError(f"{name} is {kind} model, which has no {foreign[0]}; it has {', '.join(there)}")


def settings_for(model: Model, given: Mapping[str, Any], wish: Wish, seed: int) -> Settings:
    """The settings of a request. given: fields of the settings that `model_args` name.

    Raises `UserError` where they don't fit together.
    """
    own = default_settings(model)
    values: dict[str, Any] = {**vars(own), "temperature": 0.0, **wish.sampling, **given, "seed": seed}
    if isinstance(own, Decoding):
        return Decoding(**{**values, "max_new_tokens": given.get("max_new_tokens", wish.tokens or TOKENS)})
    return Denoising(**_fitted(values, own, given, wish.tokens))


def _fitted(values: dict[str, Any], own: Denoising, given: Mapping[str, Any], tokens: int | None) -> dict[str, Any]:
    """A length other than the family's goes with blocks no longer than it and one position a step, unless said.

    A task's number of tokens is rounded up to whole blocks.
    """
    if "gen_length" not in given and tokens is None:
        return values
    length = given.get("gen_length", tokens)
    if "block_length" not in given and own.block_length is not None and length > 0:
        values["block_length"] = min(own.block_length, length)
    block = values["block_length"]
    if "gen_length" not in given and block is not None:
        length = -(-length // block) * block
    values["gen_length"] = length
    if "steps" not in given:
        values["steps"] = None
    return values
