"""What a random choice of keys would give: the expectations that overlaps are read beside.

All are exact, by the hypergeometric distribution: of n keys, k are drawn without putting back, and s of the n are
marked.
"""

from functools import cache
from math import comb


@cache
def hypergeometric(keys: int, marked: int, drawn: int) -> dict[int, float]:
    """Probability of every number of marked keys among those drawn."""
    ways = comb(keys, drawn)
    least, most = max(0, drawn + marked - keys), min(marked, drawn)
    return {hits: comb(marked, hits) * comb(keys - marked, drawn - hits) / ways for hits in range(least, most + 1)}


@cache
def expected_jaccard(keys: tuple[int, int], kept: tuple[int, int], shared: int) -> float:
    """Expected overlap (common to both over in either) of two independent random choices.

    keys: how many each choice is made from. kept: how many each keeps. shared: keys that both could choose. NaN where
    neither keeps any.
    """
    if not sum(kept):
        return float("nan")
    expected = 0.0
    for reachable, likely in hypergeometric(keys[0], shared, kept[0]).items():  # of the first choice, within reach
        for common, also in hypergeometric(keys[1], reachable, kept[1]).items():
            expected += likely * also * common / (sum(kept) - common)
    return expected
