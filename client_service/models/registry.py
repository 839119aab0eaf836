"""The client's models: name -> builder. A new model is one file in this folder and one line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from client_service.models.lgcn import LGCN
from client_service.models.model import Ingredients, Model


@dataclass(frozen=True)
class Kind:
    """How a model is built, and whether it can begin at a filter (`start` = exact)."""

    build: Callable[[Ingredients], Model]
    starts: bool = False


MODELS: dict[str, Kind] = {
    "lgcn": Kind(LGCN, starts=True),
}
