"""Shard -> the lists of every closed form that needs no training, with the settings that validation items choose."""

from __future__ import annotations

from client_service.learning.evaluate import TopItems
from client_service.learning.filters import EASE_SIDE, best_ease, best_low_pass, filter_top
from client_service.learning.interrupt import NEVER, Interrupt
from client_service.models.start import Filter
from client_service.shard import Shard
from shared.method.spectrum import Spectrum

CLOSED_FORMS = ("lowpass", "ridge", "ease")
"""By name, the weakest first as a rule."""


def closed_form_tops(
    shard: Shard, spectrum: Spectrum, ridge: Filter, *, ease_side: int = EASE_SIDE, interrupt: Interrupt = NEVER
) -> dict[str, TopItems | None]:
    """By CLOSED_FORMS. ridge: the best filter of this spectrum; ease_side: of more users and items EASE is None."""
    ease = best_ease(shard, ease_side, interrupt)
    return {
        "lowpass": best_low_pass(shard, spectrum, interrupt).top,
        "ridge": filter_top(ridge, spectrum, shard.train),
        "ease": None if ease is None else ease.top,
    }
