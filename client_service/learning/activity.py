"""The less and the more active half of a silo's users: who is in which, and the loss of each (F2MF)."""

from __future__ import annotations

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from client_service.learning.interrupt import NEVER, Interrupt
from client_service.learning.losses import bpr_of_rows
from client_service.learning.sampling import PairSampler
from client_service.models.model import Model


def more_active(interactions: sparse.csr_array) -> Tensor:
    """1 for the half of the users with the most training items, else 0, (M,). Of an odd number it has one more."""
    order = np.argsort(np.diff(interactions.indptr), kind="stable")
    group = np.zeros(len(order), dtype=np.int64)
    group[order[len(order) // 2 :]] = 1
    return torch.from_numpy(group)


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
        losses, of = bpr_of_rows(positive, negatives, batch.excluded), groups[batch.users]
        sums.index_add_(0, of, losses)
        counts.index_add_(0, of, torch.ones_like(losses))
    means = torch.where(counts > 0, sums / counts.clamp(min=1), sums.sum() / counts.sum())
    return float(means[0]), float(means[1])
