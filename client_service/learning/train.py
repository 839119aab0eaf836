"""Model, popularity tables and batches -> a trained model: steps on Eq. 9, and the tables' own fit to Eq. 7."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from client_service.learning.interrupt import NEVER, Interrupt
from client_service.learning.losses import bce, bpr, bpr_of_rows, contrastive, margin, refined_margin, shifted_cosine
from client_service.learning.sampling import Batch, PairSampler
from client_service.models.model import Model
from client_service.models.popularity import PopularityTables
from shared.method.settings import MethodSettings
from shared.strategies.strategy import Loss

TABLE_STEPS = 600  # at most; the tables hold a few hundred numbers and settle long before
TABLE_WINDOW = 50  # steps over which the loss must still fall
TABLE_TOLERANCE = 1e-3  # a relative fall between two windows below this counts as settled
MLPS = ("pooling.", "predictive.")


@dataclass(frozen=True)
class Margins:
    """How the positive's angle is widened: the tables' xi, gamma, omega, and M_updated once there is one."""

    tables: PopularityTables
    strength: float
    refinement: float
    updated: float | None

    def of(self, score: Tensor, batch: Batch) -> Tensor:
        """The refined margin (Eq. 15) of a batch's positives, (B,)."""
        xi = self.tables.at(self.tables.angles(), batch.users, batch.items)
        return refined_margin(self.updated, margin(xi, score, self.strength), score, self.refinement)


def build_optimiser(model: Model, method: MethodSettings, only: str = "") -> torch.optim.Optimizer:
    """Embeddings and kernels learn at one rate, both MLPs at another. `only`: just those whose name starts so."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if name.startswith(only)]
    private = [parameter for name, parameter in named if not name.startswith(MLPS)]
    mlps = [parameter for name, parameter in named if name.startswith(MLPS)]
    rates = ((private, method.learning_rate), (mlps, method.mlp_learning_rate))
    groups = [{"params": members, "lr": rate} for members, rate in rates if members]
    return torch.optim.Adam(groups, fused=True) if method.optimiser == "adam" else torch.optim.RMSprop(groups)


def pair_loss(
    model: Model,
    batch: Batch,
    method: MethodSettings,
    margins: Margins | None,
    loss: Loss = "",
    weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The loss of one batch (Eq. 9, BPR or BCE; "" is the one of the settings) and the share of its positives whose
    angle is at pi: no gradient there. `weights` (M,) scale the pairs of each user, with BPR and BCE."""
    leave_one_out, name = method.leave_one_out, loss or method.loss
    positive, negatives = model.scores(batch.users, batch.items, batch.negatives, leave_one_out=leave_one_out)
    if name != "bc":
        chosen = bpr if name == "bpr" else bce
        by_row = None if weights is None else weights[batch.users]
        return chosen(positive, negatives, batch.excluded, by_row), torch.zeros(())
    shift = torch.zeros_like(positive) if margins is None else margins.of(positive, batch)
    widened = shifted_cosine(positive, shift)
    saturated = (widened <= -1.0 + 1e-6).float().mean().detach()
    return contrastive(widened, torch.tanh(negatives), batch.excluded, method.temperature), saturated


@torch.no_grad()
def losses_of_groups(
    model: Model, batches: PairSampler, groups: Tensor, generator: torch.Generator, interrupt: Interrupt = NEVER
) -> tuple[float, float]:
    """Mean BPR loss over the training pairs of the users in group 0 and in group 1; groups (M,) of 0 and 1.

    A group without a pair gets the mean over all. It can be interrupted at each batch.
    """
    device = groups.device
    sums, counts = torch.zeros(2, device=device), torch.zeros(2, device=device)
    for batch in interrupt.each(batches.epoch(generator)):
        positive, negatives = model.scores(batch.users, batch.items, batch.negatives, leave_one_out=False)
        found, of = bpr_of_rows(positive, negatives, batch.excluded), groups[batch.users]
        sums.index_add_(0, of, found)
        counts.index_add_(0, of, torch.ones_like(found))
    means = torch.where(counts > 0, sums / counts.clamp(min=1), sums.sum() / counts.sum())
    return float(means[0]), float(means[1])


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
    """Minimise L_bias until it has settled; the number of steps taken. It can be interrupted at each batch.

    # Paper: the tables share the model's optimiser and are frozen after two rounds; here: a rate and a stopping rule
    of their own, because at the model's rate xi stays at pi / 2 everywhere and the margin means nothing.
    """
    optimiser = torch.optim.Adam(tables.parameters(), lr=method.table_learning_rate)
    losses: list[float] = []
    while len(losses) < TABLE_STEPS and not _settled(losses):
        for batch in interrupt.each(batches.epoch(generator)):
            loss = popularity_loss(tables, batch, method.temperature)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            losses.append(loss.item())
    return len(losses)


def _settled(losses: list[float]) -> bool:
    if len(losses) < 2 * TABLE_WINDOW:
        return False
    before = sum(losses[-2 * TABLE_WINDOW : -TABLE_WINDOW])
    return before - sum(losses[-TABLE_WINDOW:]) < TABLE_TOLERANCE * abs(before)
