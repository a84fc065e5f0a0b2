"""Model families: from a checkpoint in the hub's format to a stock transformers network and what must be known of it.

    model = load_model("GSAI-ML/LLaDA-8B-Instruct", dtype="bfloat16")
    print(describe_model("rxnmapper").architecture)

No code of a checkpoint is ever run. Importing this package registers every family that has a module in it.
"""

from sinkscope.discovery import import_modules
from sinkscope.families.base import Adapter, Blockwise, Body, Family, adapters, register

# A family is one file: its module registers itself, and no list of families has to be kept anywhere.
import_modules(__path__, __name__)

from sinkscope.families.base import LayerShape, Shape, shape_of  # noqa: E402
from sinkscope.families.describe import ModelDescription, describe_model  # noqa: E402
from sinkscope.families.model import Model, load_model  # noqa: E402
from sinkscope.families.packaged import PACKAGED  # noqa: E402

__all__ = [
    "PACKAGED",
    "Adapter",
    "Blockwise",
    "Body",
    "Family",
    "LayerShape",
    "Model",
    "ModelDescription",
    "Shape",
    "adapters",
    "describe_model",
    "load_model",
    "register",
    "shape_of",
]
