"""Seeds of random choices, made from texts: the same in every process and on every machine."""

import hashlib

MOST_SEED = 2**53
"""Larger numbers are not kept whole in JSON by everyone."""


def seed_from(text: str) -> int:
    """The seed that a text stands for."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "big")
