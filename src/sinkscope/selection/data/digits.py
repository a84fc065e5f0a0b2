"""The handwritten digits that come with scikit-learn: 1,797 grey pictures of 8 x 8 in 17 shades, ten classes.

They are always there, and that is what they are for: at this size a patch of 2 x 2 leaves 16 tokens, and 20 % of the
pictures are 359, so an accuracy is known to about 2 points. Nobody's test part is published; ours is drawn by seed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sinkscope.errors import UserError
from sinkscope.selection.data.base import Parts, Source, split_test
from sinkscope.selection.data.images import ImageSet
from sinkscope.selection.data.reading import resized
from sinkscope.selection.data.registry import source

_SHADES = 16
"""The highest of the levels, which becomes 255"""


@source("digits")
@dataclass(frozen=True)
class Digits(Source):
    """In one piece, split by seed."""

    def read(self) -> Parts:
        try:
            from sklearn.datasets import load_digits
        except ImportError as error:
            raise UserError("digits come with scikit-learn: pip install 'sinkscope[vision]'") from error
        found = load_digits()
        shades = torch.from_numpy(found.images)
        whole = ImageSet(
            images=resized((shades * 255 / _SHADES).round().to(torch.uint8), self.size, self.title),
            labels=torch.from_numpy(found.target).to(torch.int64),
            classes=tuple(str(digit) for digit in found.target_names),
            name=self.title,
        )
        return split_test(whole, self.title, self.seed)
