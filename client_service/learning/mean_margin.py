"""A model and its popularity tables -> M^c, the one number that tells of a client's popularity bias (Eq. 10)."""

from __future__ import annotations

import torch
from torch import Tensor

from client_service.learning.interrupt import NEVER, Interrupt
from client_service.learning.losses import margin
from client_service.learning.readings import READINGS
from client_service.models.heads import Pooled, PooledMLPs
from client_service.models.model import Model
from client_service.models.popularity import PopularityTables
from shared.errors import SettingsError
from shared.method.settings import MethodSettings

EXACT_PAIRS = 50_000_000  # up to so many user-item pairs the mean is exact
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
    """The mean of min(gamma xi, pi - R) over all user-item pairs, or over a million random ones of a large shard.

    xi is what the settings' reading of Eq. 8 has in its place. It can be interrupted at each block of users.
    SettingsError for a model whose scores have no angle.
    """
    head = model.head
    if not isinstance(head, PooledMLPs):
        raise SettingsError("model: expected an encoder beneath both MLPs, which has margins, got one without")
    if method.margin_strength == 0.0:
        return 0.0
    users, items = model.pooled()
    pairs = model.users * model.items
    shifts = method.margin_strength * READINGS[method.margin_reading].widening(tables)
    if pairs <= EXACT_PAIRS:
        return _exact_total(head, (users, items), tables, shifts, interrupt) / pairs
    drawn = torch.randint(pairs, (SAMPLED_PAIRS,), generator=generator).to(model.device)
    u, i = drawn // model.items, drawn % model.items
    return _sampled_total(head, _rows(users, u), _rows(items, i), tables.at(shifts, u, i)) / SAMPLED_PAIRS


def _exact_total(
    head: PooledMLPs, sides: tuple[Pooled, Pooled], tables: PopularityTables, shifts: Tensor, interrupt: Interrupt
) -> float:
    """Sum over all pairs, a block of users at a time.

    Where even the least f that the MLP's bound allows leaves gamma xi below pi - R, the margin is gamma xi and the MLP
    is not asked. With trained tables that is nearly everywhere: the exact mean costs little more than one GEMM.
    """
    users, items = sides
    every_user = torch.arange(len(users.scale), device=shifts.device)
    every_item = torch.arange(len(items.scale), device=shifts.device)
    step, total = max(1, BLOCK_PAIRS // len(items.scale)), 0.0
    for first in interrupt.each(range(0, len(users.scale), step)):
        rows = every_user[first : first + step]
        block, shift = _rows(users, rows), tables.at(shifts, rows[:, None], every_item[None, :])
        base = head.base_all(block, items) if head.residual else None
        u, i = _may_be_limited(head, base, shift).nonzero(as_tuple=True)
        scores = _score_pairs(head, (block, items), u, i)
        found = shift.index_put((u, i), margin(shift[u, i], scores, 1.0))
        total += float(found.double().sum())
    return total


def _sampled_total(head: PooledMLPs, users: Pooled, items: Pooled, shift: Tensor) -> float:
    """Sum over the pairs (B,) given, in the same way."""
    base = head.base(users, items) if head.residual else None
    limited = _may_be_limited(head, base, shift).nonzero()[:, 0]
    scores = _score_pairs(head, (users, items), limited, limited)
    found = shift.index_put((limited,), margin(shift[limited], scores, 1.0))
    return float(found.double().sum())


def _score_pairs(head: PooledMLPs, sides: tuple[Pooled, Pooled], u: Tensor, i: Tensor) -> Tensor:
    """f of the rows u (B,) of the users with the rows i (B,) of the items, part by part."""
    users, items = sides
    step = max(1, (SCORED_NUMBERS if head.residual else ALL_SCORED_NUMBERS) // head.width)
    parts = [slice(first, first + step) for first in range(0, max(1, len(u)), step)]
    return torch.cat([head.score(_rows(users, u[part]), _rows(items, i[part])) for part in parts])


def _may_be_limited(head: PooledMLPs, base: Tensor | None, shift: Tensor) -> Tensor:
    """Where pi - R may be the lesser of the two: in cosines, where tanh f < -cos(gamma xi) is possible."""
    if base is None:
        return torch.ones_like(shift, dtype=torch.bool)
    return torch.tanh(base + head.least_mlp()) < -torch.cos(shift)


def _rows(side: Pooled, rows: Tensor) -> Pooled:
    return Pooled(side.embedding[rows], side.scale[rows])
