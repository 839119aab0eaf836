"""What a silo has without anybody: its own fused start, chosen by its own validation items."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from client_service.learning.beginning import Choice, keep_choice, kept_choice
from client_service.learning.evaluate import TopItems, ranked_by
from client_service.learning.filters import best_filter, filter_scores
from client_service.learning.fusing import best_recipe
from client_service.learning.interrupt import NEVER, Interrupt
from client_service.learning.spectra import cached_spectrum
from client_service.models.fusion import Recipe, fuse, take_codes
from client_service.models.start import Filter
from client_service.shard import Shard
from shared.method.spectrum import Spectrum


@dataclass(frozen=True)
class OwnChoice:
    """The filter and the recipe that a shard's validation items prefer."""

    start: Filter
    recipe: Recipe


def own_choice(shard: Shard, spectrum: Spectrum, interrupt: Interrupt = NEVER) -> OwnChoice:
    """Chosen as a run without a common basis chooses them."""
    start = best_filter(shard, spectrum, interrupt).choice
    return OwnChoice(start, best_recipe(shard, spectrum, start, interrupt))


def kept_own_choice(
    shard: Shard, spectrum: Spectrum, cutoff: int, folder: Path, interrupt: Interrupt = NEVER
) -> OwnChoice:
    """The same, with what a run without a common basis keeps of it beside the spectrum; what is missing is kept now."""
    known = kept_choice(shard, cutoff, folder)
    if known.start is not None and known.recipe is not None:
        return OwnChoice(known.start, known.recipe)
    chosen = own_choice(shard, spectrum, interrupt)
    keep_choice(shard, cutoff, folder, Choice(start=chosen.start, recipe=chosen.recipe))
    return chosen


def alone_lists(shard: Shard, cutoff: int, folder: Path, interrupt: Interrupt = NEVER) -> TopItems:
    """Of the silo's own fused start. folder: where a run keeps what follows from the shard alone."""
    spectrum = cached_spectrum(shard, cutoff, folder)
    return own_lists(shard, spectrum, kept_own_choice(shard, spectrum, cutoff, folder, interrupt))


def own_lists(shard: Shard, spectrum: Spectrum, chosen: OwnChoice) -> TopItems:
    """Lists of the filter and what the recipe fuses with it, for the shard's own users."""
    fusion = fuse(chosen.recipe, shard.train, spectrum)
    base, codes = filter_scores(chosen.start, spectrum, shard.train), fusion.encoded(shard.train)
    return ranked_by(lambda rows: fusion.added(base(rows), take_codes(codes, rows)))
