"""How many positions a step commits: LLaDA's even shares, Dream's timesteps.

`tempered` says whether confidences are taken from the probabilities after temperature (Dream) or before it (LLaDA); the
references differ in it, and it matters only when sampling.
"""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch


class Schedule(ABC):
    """A rule for the number of positions to commit in one row of the batch."""

    tempered: ClassVar[bool]
    even_threshold: ClassVar[bool]
    """Whether threshold decoding is held to an even share a step, plus what earlier steps left over."""

    @abstractmethod
    def count(self, step: int, steps: int, masked: int, at_start: int) -> int:
        """Positions to commit at `step` of `steps` (of a block), with `masked` left of the `at_start` at the block's
        start.
        """


def even_share(step: int, steps: int, at_start: int) -> int:
    """`at_start` positions over `steps`, the rest spread over the first steps (LLaDA `get_num_transfer_tokens`)."""
    share, rest = divmod(at_start, steps)
    return share + (step < rest)


class Blocks(Schedule):
    """LLaDA: even shares of the masks at the block's start."""

    tempered = False
    even_threshold = False

    def count(self, step: int, steps: int, masked: int, at_start: int) -> int:
        return masked if step >= steps - 1 else min(masked, even_share(step, steps, at_start))


class Timesteps(Schedule):
    """Dream: timesteps t from 1 to 1e-3; at each, the share 1 - s/t of the masks that are left, rounded down.

    Computed in float32 as the reference does, rounding included: 24 steps on 24 masks commit none first and two last.
    The reference averages the number of masks over the batch; here each row counts its own, which is the same where all
    rows have the same number.
    """

    tempered = True
    even_threshold = True

    def count(self, step: int, steps: int, masked: int, at_start: int) -> int:
        del at_start
        if step >= steps - 1:
            return masked
        times = torch.linspace(1, 1e-3, steps + 1, dtype=torch.float32)
        return int(torch.tensor(float(masked)) * (1 - times[step + 1] / times[step]))


SCHEDULES: dict[str, Schedule] = {"blocks": Blocks(), "dream": Timesteps()}
