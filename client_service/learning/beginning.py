"""A shard and settings -> the model as its training begins, and the closed-form scores that are fused with its own.

What a shard's validation data choose for that is kept beside its spectrum, so that a run need not choose again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from client_service.learning.filters import best_filter
from client_service.learning.fusing import best_recipe
from client_service.learning.interrupt import Interrupt
from client_service.models.fusion import Codes, Fusion, Recipe, fuse
from client_service.models.model import Ingredients, Model, build_model
from client_service.models.start import Filter, start_at
from client_service.shard import Shard
from client_service.shard.files import replace_file
from shared.message import Message
from shared.method.exchange import EXCHANGES
from shared.method.settings import MethodSettings
from shared.method.spectrum import Spectrum

FORMAT = "lpsfed-choice/2"


class Choice(Message):
    """The filter at which training starts, and what is fused with the trained score; None: not chosen yet."""

    format: str = FORMAT
    start: Filter | None = None
    recipe: Recipe | None = None


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


def kept_choice(shard: Shard, cutoff: int, folder: Path) -> Choice:
    """What an earlier run chose for this very shard and cut-off; nothing where there is no such file."""
    try:
        found = Choice.model_validate_json(_path(shard, cutoff, folder).read_bytes())
    except (OSError, ValidationError):
        return Choice()
    return found if found.format == FORMAT else Choice()


def keep_choice(shard: Shard, cutoff: int, folder: Path, choice: Choice) -> None:
    """Replace what was kept."""
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(_path(shard, cutoff, folder), choice.model_dump_json(indent=1).encode())


def _path(shard: Shard, cutoff: int, folder: Path) -> Path:
    return folder / f"choice-{shard.digest[:16]}-{cutoff}.json"
