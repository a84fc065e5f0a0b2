"""Model families: from a checkpoint in the hub's format to a stock transformers network and what must be known of it.

    model = load_model("GSAI-ML/LLaDA-8B-Instruct", dtype="bfloat16")
    print(describe_model("rxnmapper").architecture)

No code of a checkpoint is ever run. Importing this package registers every family that has a module in it.
"""

import pkgutil
from importlib import import_module

from sinkscope.families.base import Adapter, Body, Family, adapters, register

# A family is one file: its module registers itself, and no list of families has to be kept anywhere.
for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

from sinkscope.families.describe import ModelDescription, describe_model  # noqa: E402
from sinkscope.families.model import Model, load_model  # noqa: E402
from sinkscope.families.packaged import PACKAGED  # noqa: E402
from sinkscope.families.shape import Shape, shape_of  # noqa: E402

__all__ = [
    "PACKAGED",
    "Adapter",
    "Body",
    "Family",
    "Model",
    "ModelDescription",
    "Shape",
    "adapters",
    "describe_model",
    "load_model",
    "register",
    "shape_of",
]
