"""Registry of the closed-form scorers of the fusion, and those of one silo.

A further one is a file with its `ScorerPart` beside these, and a line here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from scipy import sparse

from client_service.data.interactions import Shard
from client_service.models.closed_form.content import (
    CONTENT,
    ColdItemScorer,
    ContentSetting,
    ContentSums,
    cold_scorer,
    find_item_features,
)
from client_service.models.closed_form.ease import EASE
from client_service.models.closed_form.edlae import EDLAE
from client_service.models.closed_form.frequency import FREQUENCY
from client_service.models.closed_form.full_spectrum import FILTER
from client_service.models.closed_form.least_squares import SQUARES
from client_service.models.closed_form.rp3beta import RP3BETA
from client_service.models.closed_form.scorer_part import ItemScorer, Scorer, ScorerPart, SummedPairs, TrainingGraph
from client_service.models.cold_items import choose_content_setting
from shared.errors import SettingsError
from shared.method.parameters import Float32
from shared.method.spectrum import Spectrum

PARTS: dict[str, ScorerPart] = {
    part.name: part
    for part in (
        FILTER,
        SQUARES,
        EASE,
        FREQUENCY,
        EDLAE,
        RP3BETA,
        CONTENT,
    )
}
"""In the order in which validation weighs them."""


def find_part(name: str) -> ScorerPart:
    """Returns the entry of a scorer by its name.

    Raises SettingsError for a name that this version does not have.
    """
    try:
        return PARTS[name]
    except KeyError:
        raise SettingsError(f"recipe: expected scorers among {', '.join(PARTS)}, got {name!r}; run again") from None


def score_sums(pairs: SummedPairs) -> tuple[ItemScorer, ...]:
    """Builds every scorer that item pairs of all silos give.

    The one of largest weight comes first. The scorers are over the catalogue.
    """
    parts = sorted(PARTS.values(), key=lambda part: -part.weight)
    return tuple(part.from_sums(pairs) for part in parts if part.from_sums is not None)


@dataclass
class ClosedFormScorers:
    """Closed-form scorers of one training graph.

    interactions (M, N), their low spectrum, and what is known of the items: see `TrainingGraph`. A kept scorer is
    returned again, any other is built anew, because the inverse of each ridge of EASE may take hundreds of megabytes.
    """

    interactions: sparse.csr_array
    spectrum: Spectrum
    features: Float32 | None = None
    others: ContentSums | None = None
    _kept: dict[tuple[str, Any], Scorer] = field(default_factory=dict)

    @classmethod
    def from_shard(cls, shard: Shard, spectrum: Spectrum, others: ContentSums | None = None) -> ClosedFormScorers:
        """Makes the scorers from a shard's training pairs and the features of its items."""
        features = find_item_features(shard)
        return cls(shard.train, spectrum, None if features is None else features.values, others)

    @cached_property
    def graph(self) -> TrainingGraph:
        """Graph from which all scorers are built."""
        return TrainingGraph(self.interactions, self.spectrum, self.features, self.others)

    def make(self, name: str, setting: Any) -> Scorer:
        """Builds the scorer of the graph with this setting, or returns the one kept."""
        kept = self._kept.get((name, setting))
        made: Scorer = find_part(name).make(self.graph, setting) if kept is None else kept
        return made

    def choose_cold_setting(self) -> ContentSetting | None:
        """Chooses the setting that ranks hidden items best; None without item metadata."""
        return None if self.features is None else choose_content_setting(self.graph)

    def make_cold_scorer(self, setting: ContentSetting | None) -> ColdItemScorer | None:
        """Builds the scorer of items without interactions; None without item metadata."""
        return None if setting is None else cold_scorer(self.graph, setting)

    def make_each(self, name: str, settings: Sequence[Any]) -> list[Scorer]:
        """Builds the scorers of several settings at once."""
        part = find_part(name)
        if part.make_each is None:
            return [part.make(self.graph, setting) for setting in settings]
        return part.make_each(self.graph, settings)

    def keep(self, name: str, setting: Any, made: Scorer) -> None:
        """Stores a scorer, which `make` then returns."""
        self._kept[name, setting] = made
