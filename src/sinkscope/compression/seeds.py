"""Seeds of random choices among keys: of the prompt and the user's own, unlike those of sampling."""

from collections.abc import Sequence

from sinkscope.seeds import seed_from


def row_seeds(own: int, seeds: Sequence[int] | None) -> list[int]:
    """One seed a row, from those of the prompts (None: the same for all rows) and the user's own."""
    return [seed_from(f"keys/{seed}/{own}") for seed in ([0] if seeds is None else seeds)]
