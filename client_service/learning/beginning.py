"""A shard and settings -> the model as its training begins, and the closed-form scores that are fused with its own."""

from __future__ import annotations

from dataclasses import dataclass

from client_service.learning.choice import Choice
from client_service.learning.filters import best_filter
from client_service.learning.fusing import best_recipe
from client_service.learning.interrupt import Interrupt
from client_service.models.fusion import Codes, Fusion, Recipe, fuse
from client_service.models.model import Ingredients, Model, build_model
from client_service.models.start import Filter, start_at
from client_service.shard import Shard
from shared.method.exchange import EXCHANGES
from shared.method.settings import MethodSettings
from shared.method.spectrum import Spectrum


@dataclass(frozen=True)
class Beginning:
    """A model, the filter at which it begins if it does, and the fusion with its codes of the users' training items."""

    model: Model
    start: Filter | None
    recipe: Recipe | None
    fusion: Fusion
    codes: Codes


def begin_model(
    shard: Shard, spectrum: Spectrum, method: MethodSettings, name: str, chosen: Choice, interrupt: Interrupt
) -> Beginning:
    """The named model. Only one that begins at a filter (`start` = exact) is fused with closed-form scores."""
    start = recipe = None
    if method.start == "exact" and EXCHANGES[name].starts_at_filter:
        start = chosen.start or best_filter(shard, spectrum, interrupt).choice
    if start is not None and method.fusion:
        recipe = chosen.recipe or best_recipe(shard, spectrum, start, interrupt)
    origin = None if start is None else start_at(start, spectrum, shard.train)
    model = build_model(name, Ingredients(spectrum, shard.train, origin, shard.places, method))
    fusion = fuse(recipe, shard.train, spectrum)
    return Beginning(model, start, recipe, fusion, fusion.encoded(shard.train))
