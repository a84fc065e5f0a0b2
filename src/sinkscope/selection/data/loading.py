"""Load pictures by the name of their source, in three parts."""

from __future__ import annotations

from sinkscope.errors import UserError
from sinkscope.selection.data.base import carve
from sinkscope.selection.data.fashion_mnist import is_installed
from sinkscope.selection.data.images import Splits
from sinkscope.selection.data.registry import find_source


def load_images(source: str, *, size: int | None = None, seed: int = 0, validation: float = 0.1) -> Splits:
    """Pictures for training, validation and test.

    source: "fashion-mnist", "digits", "folder:PATH" or "hub:NAME". size: bring every picture to so many rows and
    columns (shorter side resized, centre cut out). seed: draws what the source does not split itself. validation: the
    share of the training part that is held back; where the source has a validation part and a test part of its own,
    that is taken and the share is not used.

    Raises `UserError` for a source that is unknown, missing or damaged, and for more pictures than memory allows.
    """
    if not 0 < validation < 1:
        raise UserError(f"validation must lie between 0 and 1, a share of the training part; got {validation:g}")
    found = find_source(source, size=size, seed=seed)
    parts = found.read()
    if parts.validation is not None:
        return Splits(train=parts.train, validation=parts.validation, test=parts.test)
    name = f"{found.title}, validation ({validation:.0%} of train, seed {seed})"
    train, held_back = carve(parts.train, validation, seed, name)
    return Splits(train=train, validation=held_back, test=parts.test)


def default_source() -> str:
    """Fashion-MNIST where Debian's package is installed, else the digits that come with scikit-learn."""
    return "fashion-mnist" if is_installed() else "digits"


def about_default() -> str:
    """Which source that is, why, and how to get others, for whoever named none."""
    if is_installed():
        return "no data were named: Fashion-MNIST is taken, which is installed here; --data names others"
    return (
        "no data were named, and Fashion-MNIST is not installed: the digits that come with scikit-learn are taken "
        "(8 x 8, an easier task); for Fashion-MNIST, apt install dataset-fashion-mnist, then --data fashion-mnist"
    )
