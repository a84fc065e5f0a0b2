"""Pictures to train token selection on, and to measure it with.

    splits = load_images(default_source())         # "fashion-mnist" where it is installed, else "digits"
    splits = load_images("folder:flowers", size=64, seed=1)
    splits.train.pixels([0, 1, 2])                 # (3, channel, row, column), floats, in [-1, 1] by default

Every picture is held in memory as bytes; `check_memory` refuses what would take too many.
"""

from sinkscope.selection.data.folder import Folder
from sinkscope.selection.data.hub import Hub
from sinkscope.selection.data.images import ImageSet, Splits
from sinkscope.selection.data.preprocessing import Preprocessing
from sinkscope.selection.data.published import Digits, FashionMnist, about_default, default_source
from sinkscope.selection.data.reading import describe_skipped
from sinkscope.selection.data.sources import SOURCES, Parts, Source, find_source, load_images

__all__ = [
    "SOURCES",
    "Digits",
    "FashionMnist",
    "Folder",
    "Hub",
    "ImageSet",
    "Parts",
    "Preprocessing",
    "Source",
    "Splits",
    "about_default",
    "default_source",
    "describe_skipped",
    "find_source",
    "load_images",
]
