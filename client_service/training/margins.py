"""Margins of positives from popularity tables (Eq. 8, 15), and their mean M^c."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from client_service.models.model import Model, Pooled, PooledMLPs
from client_service.models.popularity_angle import PopularityTables
from client_service.runtime.interruption import NEVER, Interrupt
from client_service.training.losses import contrastive, lowered_cosine, margin, refined_margin, shifted_cosine
from client_service.training.optimisers import OPTIMISERS
from client_service.training.sampling import Batch, PairSampler
from shared.errors import SettingsError
from shared.method.settings import MarginReading, MethodSettings


@dataclass(frozen=True)
class MarginForm:
    """One form of the margin, a choice of `margin_reading`.

    widening: the factor of gamma, for every pair of buckets. subtract_from_cosine: is the margin taken off the cosine,
    cos R - M, and not added to the angle, cos(R + M)?
    """

    widening: Callable[[PopularityTables], Tensor]
    subtract_from_cosine: bool = False


def scaled_angles(tables: PopularityTables) -> Tensor:
    """Computes xi / pi of every pair of buckets, in [0, 1]."""
    # Paper: xi, in [0, pi]; here: in [0, 1 rad], the range of the margins that BC-Loss's code trains with, because a
    # trained xi lies about pi / 2, and so does R of a pair that nothing is known of: their sum is the end, pi.
    return tables.angles() / math.pi


def dissimilarities(tables: PopularityTables) -> Tensor:
    """Computes 1 - sigmoid(u . v) of every pair of buckets, in [0, 1].

    It is the margin in the code that BC-Loss released.
    """
    # Paper: xi, the angle between u and v, after BC-Loss's text; here: its code (anzhang314/BC-Loss), without angle.
    return 1.0 - tables.products().sigmoid()


MARGIN_FORMS: dict[MarginReading, MarginForm] = {
    "literal": MarginForm(PopularityTables.angles),
    "scaled": MarginForm(scaled_angles),
    "sigmoid": MarginForm(dissimilarities),
    "additive": MarginForm(PopularityTables.angles, subtract_from_cosine=True),
}


TABLE_STEPS = 600  # at most; the tables have a few hundred numbers and settle long before
TABLE_WINDOW = 50  # steps over which the loss must still fall
TABLE_TOLERANCE = 1e-3  # a relative fall between two windows below this counts as settled


@dataclass(frozen=True)
class Margins:
    """Margin added to the positives' angles.

    tables: give xi. strength: gamma. refinement: omega. updated: M_updated once there is one. form: of Eq. 8.
    """

    tables: PopularityTables
    strength: float
    refinement: float
    updated: float | None
    form: MarginReading = "literal"

    def compute(self, score: Tensor, batch: Batch) -> Tensor:
        """Computes the refined margin (Eq. 15) of a batch's positives, (B,)."""
        xi = self.tables.at(MARGIN_FORMS[self.form].widening(self.tables), batch.users, batch.items)
        return refined_margin(self.updated, margin(xi, score, self.strength), score, self.refinement)

    def widen(self, score: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Computes the logits of a batch's positives with margins, and which are saturated.

        Eq. 9, before tau, both (B,). Saturated: the angle is at pi, and the positive has no gradient.
        """
        shift = self.compute(score, batch)
        if MARGIN_FORMS[self.form].subtract_from_cosine:
            return lowered_cosine(score, shift), is_saturated(torch.tanh(score))
        widened = shifted_cosine(score, shift)
        return widened, is_saturated(widened)


def is_saturated(cosine: Tensor) -> Tensor:
    """Tells which cosines belong to an angle of pi, within float32 precision."""
    return cosine <= -1.0 + 1e-6


def popularity_loss(tables: PopularityTables, batch: Batch, temperature: float) -> Tensor:
    """Computes L_bias (Eq. 7) of one batch."""
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
    """Fits the popularity tables by L_bias until it has settled; returns the number of steps.

    It can be interrupted at each batch.
    """
    # Paper: the tables share the model's optimiser and are frozen after two rounds; here: a rate and a stopping rule of
    # their own, because at the model's rate xi stays at pi / 2 everywhere and the margin means nothing.
    optimiser = OPTIMISERS["adam"](tables.parameters(), lr=method.table_learning_rate)
    losses: list[float] = []
    while len(losses) < TABLE_STEPS and not _is_settled(losses):
        for batch in interrupt.check_each(batches.epoch(generator)):
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


EXACT_PAIRS = 50_000_000  # most user-item pairs for an exact mean
SAMPLED_PAIRS = 1_000_000
BLOCK_PAIRS = 1 << 20  # pairs that are looked at at a time
SCORED_NUMBERS = 1 << 21  # pairs x width that the MLP scores at a time beside a base path, some 70 MB
ALL_SCORED_NUMBERS = 1 << 26  # and without one, where all pairs are scored: some 2 GB


@torch.no_grad()
def mean_margin(
    model: Model,
    tables: PopularityTables,
    method: MethodSettings,
    generator: torch.Generator,
    interrupt: Interrupt = NEVER,
) -> float:
    """Computes the mean margin over all user-item pairs.

    It is the mean of min(gamma xi, pi - R); of a large shard over a million random pairs. `margin_reading` may replace
    xi. It can be interrupted at each block of users. Raises SettingsError for a model whose scores have no angle.
    """
    head = model.head
    if not isinstance(head, PooledMLPs):
        raise SettingsError("model: expected an encoder beneath both MLPs, which has margins, got one without")
    if method.margin_strength == 0.0:
        return 0.0
    users, items = model.pooled()
    pairs = model.users * model.items
    shifts = method.margin_strength * MARGIN_FORMS[method.margin_reading].widening(tables)
    if pairs <= EXACT_PAIRS:
        return _exact_total(head, (users, items), tables, shifts, interrupt) / pairs
    drawn = torch.randint(pairs, (SAMPLED_PAIRS,), generator=generator).to(model.device)
    u, i = drawn // model.items, drawn % model.items
    return _sampled_total(head, _rows(users, u), _rows(items, i), tables.at(shifts, u, i)) / SAMPLED_PAIRS


def _exact_total(
    head: PooledMLPs, sides: tuple[Pooled, Pooled], tables: PopularityTables, shifts: Tensor, interrupt: Interrupt
) -> float:
    """Sums the margins of all pairs, a block of users at a time.

    Where even the lower bound of f leaves gamma xi below pi - R, the margin is gamma xi and the MLP is not computed.
    With trained tables that is nearly everywhere: the exact mean costs little more than one GEMM.
    """
    users, items = sides
    every_user = torch.arange(len(users.scale), device=shifts.device)
    every_item = torch.arange(len(items.scale), device=shifts.device)
    step, total = max(1, BLOCK_PAIRS // len(items.scale)), 0.0
    for first in interrupt.check_each(range(0, len(users.scale), step)):
        rows = every_user[first : first + step]
        block, shift = _rows(users, rows), tables.at(shifts, rows[:, None], every_item[None, :])
        base = head.base_all(block, items) if head.residual else None
        u, i = _may_be_limited(head, base, shift).nonzero(as_tuple=True)
        scores = _score_pairs(head, (block, items), u, i)
        found = shift.index_put((u, i), margin(shift[u, i], scores, 1.0))
        total += float(found.double().sum())
    return total


def _sampled_total(head: PooledMLPs, users: Pooled, items: Pooled, shift: Tensor) -> float:
    """Sums the margins of the given pairs (B,), as `_exact_total` does."""
    base = head.base(users, items) if head.residual else None
    limited = _may_be_limited(head, base, shift).nonzero()[:, 0]
    scores = _score_pairs(head, (users, items), limited, limited)
    found = shift.index_put((limited,), margin(shift[limited], scores, 1.0))
    return float(found.double().sum())


def _score_pairs(head: PooledMLPs, sides: tuple[Pooled, Pooled], u: Tensor, i: Tensor) -> Tensor:
    """Computes f of user rows u (B,) with item rows i (B,), in blocks."""
    users, items = sides
    step = max(1, (SCORED_NUMBERS if head.residual else ALL_SCORED_NUMBERS) // head.width)
    parts = [slice(first, first + step) for first in range(0, max(1, len(u)), step)]
    return torch.cat([head.score(_rows(users, u[part]), _rows(items, i[part])) for part in parts])


def _may_be_limited(head: PooledMLPs, base: Tensor | None, shift: Tensor) -> Tensor:
    """Tells where pi - R may be smaller than gamma xi.

    In cosines: where tanh f < -cos(gamma xi) is possible.
    """
    if base is None:
        return torch.ones_like(shift, dtype=torch.bool)
    return torch.tanh(base + head.mlp_lower_bound()) < -torch.cos(shift)


def _rows(side: Pooled, rows: Tensor) -> Pooled:
    return Pooled(side.embedding[rows], side.scale[rows])
