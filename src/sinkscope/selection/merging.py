"""Ways to send as many tokens in which the patches that go are not lost but taken in.

`evit` keeps what the class token looks at and fuses all else into one token, weighted by the class token's attention
(Liang et al. 2022, arXiv 2202.07800). That token takes one of the places that the budget allows, the last; the paper
sends one more. `tome` merges patches that are alike (Bolya et al. 2022, arXiv 2210.09461): every second one is joined
to its nearest of the others, the closest pairs first, until as many are left as the budget allows. Means are weighted
by how many patches a token stands for, and queries see a token as often as that, on the camera's side; those numbers
are not sent.

Neither needs training, and `random` and `cls-attention` at the same share are what they must beat.

Where they differ from the papers: both act at the gates alone, not at every block, and ToMe compares the tokens
themselves, not their keys.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch

from sinkscope.ordering import ordered
from sinkscope.selection.selectors import ClsAttentionSelector, GateInput, Merged, Selector, selector

Rows = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
_AT_GATES: WeakKeyDictionary[GateInput, Rows] = WeakKeyDictionary()
"""What was merged at gates that are still looked at."""


@selector("evit")
class Evit(ClsAttentionSelector):
    def merged(self, at: GateInput, keep: torch.Tensor) -> Merged | None:
        assert at.attention is not None
        attention = at.attention.by_class.masked_fill(~at.there, 0)
        last = attention.masked_fill(~keep, torch.inf).argmin(-1, keepdim=True)  # (batch, 1)
        fused = at.there & ~keep
        place = torch.zeros_like(keep).scatter(1, last, fused.any(-1, keepdim=True))
        weights = attention * (fused | place)  # (batch, patch)
        one = (weights.unsqueeze(-1) * at.patches).sum(1, keepdim=True)
        return Merged(patches=torch.where(place.unsqueeze(-1), one, at.patches), sizes=None)


@selector("tome")
class ToMe(Selector):
    def scores(self, at: GateInput) -> torch.Tensor:
        return _merged_rows(at)[0].to(at.patches.dtype)

    def merged(self, at: GateInput, keep: torch.Tensor) -> Merged | None:
        del keep  # those of the highest score, which are the ones that were left
        _, patches, sizes = _merged_rows(at)
        return Merged(patches=patches, sizes=sizes)


def _merged_rows(at: GateInput) -> Rows:
    """Which patches are left (batch, patch), what they are then, and of how many patches. Worked out once a gate."""
    if at not in _AT_GATES:
        sizes = torch.ones_like(at.patches[..., 0]) if at.sizes is None else at.sizes
        rows = [
            merge_alike(patches, some, there, int(count))
            for patches, some, there, count in zip(at.patches, sizes, at.there, at.counts, strict=True)
        ]
        left, patches, sizes = (torch.stack(parts) for parts in zip(*rows, strict=True))
        _AT_GATES[at] = left, patches, sizes
    return _AT_GATES[at]


def merge_alike(
    patches: torch.Tensor, sizes: torch.Tensor, there: torch.Tensor, count: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Bipartite soft matching of one picture's patches (patch, width), round by round, until `count` are left.

    sizes (patch,): patches that each stands for. Gives which are left, (patch,) boolean, and what patches and sizes are
    then. At most half of the patches go in a round.
    """
    left = there.nonzero().flatten()
    totals, sizes = patches * sizes.unsqueeze(-1), sizes.clone()
    while (most := len(left) - count) > 0:
        going, staying = left[::2], left[1::2]
        means = torch.nn.functional.normalize(totals / sizes.unsqueeze(-1), dim=-1)
        alike, partner = (means[going] @ means[staying].T).max(-1)
        chosen = ordered(alike)[: min(most, len(left) // 2)]
        into, gone = staying[partner[chosen]], going[chosen]
        totals = totals.index_add(0, into, totals[gone])
        sizes = sizes.index_add(0, into, sizes[gone])
        left = left[~torch.isin(left, gone)]
    is_left = torch.zeros_like(there).index_fill(0, left, value=True)
    return is_left, totals / sizes.unsqueeze(-1), sizes
