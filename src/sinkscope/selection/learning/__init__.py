"""Train token selection, over random shares, rates and noise."""

from sinkscope.selection.learning.recipe import SelectionRecipe, recipe_from
from sinkscope.selection.learning.training import StepReport, new_model, read_recipe, train_selective

__all__ = ["SelectionRecipe", "StepReport", "new_model", "read_recipe", "recipe_from", "train_selective"]
