"""The three kinds of twins: what each is trained for and what it starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sinkscope.errors import UserError

Objective = Literal["next-token", "masked-diffusion"]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One twin."""

    name: str
    objective: Objective
    logit_shift: bool = False
    """Row i-1 of the logits predicts position i, as an adapted autoregressive model keeps it (Dream)."""
    starts_from: str | None = None
    """The twin whose finished weights it starts from; the shared initial weights where None."""
    summary: str


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(name="twin-ar", objective="next-token", summary="autoregressive: causal, next-token loss"),
        Kind(
            name="twin-dlm",
            objective="masked-diffusion",
            summary="diffusion from scratch, like LLaDA: bidirectional, masked-diffusion loss",
        ),
        Kind(
            name="twin-adapted",
            objective="masked-diffusion",
            logit_shift=True,
            starts_from="twin-ar",
            summary="twin-ar made bidirectional and trained on as a diffusion model, logits shifted, like Dream",
        ),
    )
}


def find_kind(name: str) -> Kind:
    """The kind of that name. Raises `UserError` naming those there are."""
    if name not in KINDS:
        raise UserError(f"no twin is called {name!r}; the twins are {', '.join(KINDS)}")
    return KINDS[name]
