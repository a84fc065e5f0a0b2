"""Train token selection, over random shares, rates and noise."""

from sinkscope.selection.learning.recipe import Recipe, recipe_from
from sinkscope.selection.learning.training import Now, new_model, read_recipe, train_selective

__all__ = ["Now", "Recipe", "new_model", "read_recipe", "recipe_from", "train_selective"]
