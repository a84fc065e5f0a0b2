"""Seeds of random choices among keys: of the prompt and the user's own, unlike those of sampling."""

import hashlib
from collections.abc import Sequence

MOST_SEED = 2**53
"""Larger numbers are not kept whole in JSON by everyone."""


def row_seeds(own: int, seeds: Sequence[int] | None) -> list[int]:
    """One seed a row, from those of the prompts (None: the same for all rows) and the user's own."""
    return [_mixed(seed, own) for seed in ([0] if seeds is None else seeds)]


def _mixed(seed: int, own: int) -> int:
    return seed_from(f"keys/{seed}/{own}")


def seed_from(text: str) -> int:
    """A seed that a text stands for, the same in every process and on every machine."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
