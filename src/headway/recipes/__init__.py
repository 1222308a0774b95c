"""Recipes: everything that decides a run, in one strict file; and the presets."""

from headway.recipes.base import RecipeBase
from headway.recipes.reading import parse, presets
from headway.recipes.recipe import Recipe

__all__ = ["Recipe", "RecipeBase", "parse", "presets"]
