"""Popularity tables -> the margin of a batch's positives (Eq. 8, 15), and the tables' own fit to Eq. 7."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from client_service.learning.interrupt import NEVER, Interrupt
from client_service.learning.losses import (
    contrastive,
    lowered_cosine,
    margin,
    refined_margin,
    shifted_cosine,
)
from client_service.learning.readings import READINGS
from client_service.learning.sampling import Batch, PairSampler
from client_service.models.popularity import PopularityTables
from shared.method.margin_readings import MarginReading
from shared.method.settings import MethodSettings

TABLE_STEPS = 600  # at most; the tables hold a few hundred numbers and settle long before
TABLE_WINDOW = 50  # steps over which the loss must still fall
TABLE_TOLERANCE = 1e-3  # a relative fall between two windows below this counts as settled


@dataclass(frozen=True)
class Margins:
    """How the positive's angle is widened: the tables' xi, gamma, omega, M_updated once there is one, and Eq. 8."""

    tables: PopularityTables
    strength: float
    refinement: float
    updated: float | None
    reading: MarginReading = "literal"

    def of(self, score: Tensor, batch: Batch) -> Tensor:
        """The refined margin (Eq. 15) of a batch's positives, (B,)."""
        xi = self.tables.at(READINGS[self.reading].widening(self.tables), batch.users, batch.items)
        return refined_margin(self.updated, margin(xi, score, self.strength), score, self.refinement)

    def widened(self, score: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """The logits of a batch's positives with their margins (Eq. 9, before tau), (B,), and which of them are level:
        their angle is at pi, and they teach nothing."""
        shift = self.of(score, batch)
        if READINGS[self.reading].off_the_cosine:
            return lowered_cosine(score, shift), is_level(torch.tanh(score))
        widened = shifted_cosine(score, shift)
        return widened, is_level(widened)


def is_level(cosine: Tensor) -> Tensor:
    """Where an angle is at pi, to within what a float32 can tell."""
    return cosine <= -1.0 + 1e-6


def popularity_loss(tables: PopularityTables, batch: Batch, temperature: float) -> Tensor:
    """L_bias (Eq. 7) of one batch."""
    cosines = tables.cosines()
    positive = tables.at(cosines, batch.users, batch.items)
    negatives = tables.at(cosines, batch.users[:, None], batch.negatives[None, :])
    return contrastive(positive, negatives, batch.excluded, temperature)


def fit_tables(
    tables: PopularityTables,
    batches: PairSampler,
    method: MethodSettings,
    generator: torch.Generator,
    interrupt: Interrupt = NEVER,
) -> int:
    """Minimise L_bias until it has settled; the number of steps taken. It can be interrupted at each batch."""
    # Paper: the tables share the model's optimiser and are frozen after two rounds; here: a rate and a stopping rule of
    # their own, because at the model's rate xi stays at pi / 2 everywhere and the margin means nothing.
    optimiser = torch.optim.Adam(tables.parameters(), lr=method.table_learning_rate)
    losses: list[float] = []
    while len(losses) < TABLE_STEPS and not _is_settled(losses):
        for batch in interrupt.each(batches.epoch(generator)):
            loss = popularity_loss(tables, batch, method.temperature)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            losses.append(loss.item())
    return len(losses)


def _is_settled(losses: list[float]) -> bool:
    if len(losses) < 2 * TABLE_WINDOW:
        return False
    before = sum(losses[-2 * TABLE_WINDOW : -TABLE_WINDOW])
    return before - sum(losses[-TABLE_WINDOW:]) < TABLE_TOLERANCE * abs(before)
