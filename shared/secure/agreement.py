"""Settings -> may a federation aggregate securely, and on which terms: what both sides must come to by themselves."""

from __future__ import annotations

import math
from typing import NamedTuple

from shared.errors import SettingsError
from shared.schemas import Declaration
from shared.secure.messages import VISIBLE
from shared.secure.vector import layout
from shared.settings import MethodSettings
from shared.strategy import Strategy

SINGLE = ("clip_factor", "quarantine_factor")  # 0 turns each off


def secured(declaration: Declaration, strategy: Strategy, method: MethodSettings) -> Declaration:
    """The declaration of a federation that sums in secret. SettingsError for what needs to see single updates."""
    if strategy.needs_single_updates or not declaration.tensors:
        raise SettingsError(f"secure: expected a strategy that needs the mean alone, got {strategy.name!r}")
    require_mean(method)
    return declaration.model_copy(update={"secure": True})


def require_mean(method: MethodSettings) -> None:
    """SettingsError for a run's settings that look at single updates or counts at the aggregator."""
    if method.aggregate != "mean":
        raise SettingsError(f"secure: expected aggregate = mean, got {method.aggregate}")
    if method.anchor.size != "declared":
        words = "because no count of a silo leaves it, and each client computes the anchor by itself"
        raise SettingsError(f"secure: expected anchor.size = declared, {words}, got {method.anchor.size}")
    for name in SINGLE:
        if (value := getattr(method, name)) != 0:
            raise SettingsError(f"secure: expected {name} = 0, got {value:g}: nobody sees a single update's size")


def answered(declaration: Declaration) -> Declaration:
    """What a client may get back: the mean of all that was summed, and its own rhobar."""
    scalars = (*(name for name in declaration.scalars if name not in VISIBLE), "rhobar")
    return declaration.model_copy(update={"scalars": scalars})


class Form(NamedTuple):
    """One tensor of an update's body: its type there, its shape, its bytes."""

    dtype: str
    shape: tuple[int, ...]
    bytes: int


def forms(declaration: Declaration) -> dict[str, Form]:
    """The tensors of an update's body by name: as they are declared, or as they are masked."""
    if not declaration.secure:
        return {spec.name: Form("F32", spec.shape, 4 * math.prod(spec.shape)) for spec in declaration.tensors}
    return {name: Form("U64", shape, 8 * math.prod(shape)) for name, shape in layout(declaration).items()}


def beside(declaration: Declaration) -> tuple[str, ...]:
    """The scalars that anybody can read who has an update's body."""
    return tuple(name for name in declaration.scalars if not declaration.secure or name in VISIBLE)
