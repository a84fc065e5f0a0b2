"""What `model_args` say of keys that are dropped from the cache: `scorer=key-norm,ratio=0.5`.

Keys are dropped after the prompt was read (`when=prompt`), or while the answer is written
(`when=decode,prune_after=N`); a diffusion model drops them in its block cache (`cache=dual`). Of a likelihood the given
text is the prompt.

Misleads: the harness hands over a prompt in one piece, so a context can't be compressed before its question is read,
and the first token of every answer or continuation comes from the whole cache. An answer of one token, as of most
multiple-choice tasks, owes nothing to what was kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sinkscope.compression import Budget, Compress, Protect, Ratio, Scorer, SkipLayers, Tokens, make_scorer
from sinkscope.errors import UserError
from sinkscope.evaluation.harness.values import read_value

DROPPING: Mapping[str, Any] = MappingProxyType(
    {
        "scorer": str,
        "ratio": float,
        "kept_tokens": int,
        "skip_layers": tuple[int, ...],
        "protect_first": int,
        "protect_recent": int,
        "when": str,
        "prune_after": int,
    }
)
"""Names and their types."""


def read_compression(given: Mapping[str, Any], seed: int) -> Compress | None:
    """The compression that was asked for; None without a scorer.

    Raises `UserError` for values that no model could follow, and for names that say how without saying which.
    """
    asked = {name: read_value(name, given[name], hint) for name, hint in DROPPING.items() if name in given}
    if not asked:
        return None
    if "scorer" not in asked:
        name = next(iter(asked))
        raise UserError(f"model argument {name} says how keys are dropped, not which; add scorer=key-norm")
    return Compress(
        _scorer(asked),
        _budget(asked),
        when=asked.get("when", "prompt"),
        prune_after=asked.get("prune_after"),
        seed=seed,
    )


def _scorer(asked: Mapping[str, Any]) -> Scorer:
    first, recent = asked.get("protect_first", 0), asked.get("protect_recent", 0)
    made = make_scorer(asked["scorer"])
    return Protect(made, first=first, recent=recent) if first or recent else made


def _budget(asked: Mapping[str, Any]) -> Budget:
    if ("ratio" in asked) == ("kept_tokens" in asked):
        raise UserError("say how many keys stay by one of ratio=0.5 and kept_tokens=256")
    budget = Ratio(asked["ratio"]) if "ratio" in asked else Tokens(asked["kept_tokens"])
    return SkipLayers(budget, asked["skip_layers"]) if "skip_layers" in asked else budget
