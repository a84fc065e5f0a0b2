"""Twins: small models of one architecture, one corpus and one order, trained with different objectives."""

from sinkscope.training.checkpoints import TrainingProgress
from sinkscope.training.recipe import KINDS, Kind, Recipe, find_kind, recipe_from
from sinkscope.training.training import TrainingPoint, train_twin
from sinkscope.training.twins import Measuring, read_recipe, train_twins

__all__ = [
    "KINDS",
    "Kind",
    "Measuring",
    "Recipe",
    "TrainingPoint",
    "TrainingProgress",
    "find_kind",
    "read_recipe",
    "recipe_from",
    "train_twin",
    "train_twins",
]
