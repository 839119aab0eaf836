"""Model, batches and an objective -> the loss that each step minimises (Eq. 9), and the optimiser that takes it."""

from __future__ import annotations

import torch
from torch import Tensor

from client_service.learning.losses import bce, bpr, contrastive
from client_service.learning.margins import Margins, is_level
from client_service.learning.sampling import Batch
from client_service.models.model import Model
from shared.method.settings import MethodSettings
from shared.strategies.local_client import Loss

MLPS = ("pooling.", "predictive.")


def build_optimiser(model: Model, method: MethodSettings, only: str = "") -> torch.optim.Optimizer:
    """Embeddings and kernels learn at one rate, both MLPs at another. `only`: just those whose name starts so."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if name.startswith(only)]
    private = [parameter for name, parameter in named if not name.startswith(MLPS)]
    mlps = [parameter for name, parameter in named if name.startswith(MLPS)]
    rates = ((private, method.learning_rate), (mlps, method.mlp_learning_rate))
    groups = [{"params": members, "lr": rate} for members, rate in rates if members]
    if method.optimiser == "adam":
        return torch.optim.Adam(groups, fused=True)
    return torch.optim.SGD(groups) if method.optimiser == "sgd" else torch.optim.RMSprop(groups)


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
    bare = torch.tanh(positive)
    widened, level = (bare, is_level(bare)) if margins is None else margins.widened(positive, batch)
    value = contrastive(widened, torch.tanh(negatives), batch.excluded, method.temperature)
    return value, level.float().mean().detach()
