"""Twins: small models of one architecture, one corpus and one order, trained with different objectives."""

from sinkscope.training.checkpoints import Progressed
from sinkscope.training.kinds import KINDS, Kind, find_kind
from sinkscope.training.recipe import Recipe, recipe_from
from sinkscope.training.training import Point, train_twin
from sinkscope.training.twins import Measuring, read_recipe, train_twins

__all__ = [
    "KINDS",
    "Kind",
    "Measuring",
    "Point",
    "Progressed",
    "Recipe",
    "find_kind",
    "read_recipe",
    "recipe_from",
    "train_twin",
    "train_twins",
]
