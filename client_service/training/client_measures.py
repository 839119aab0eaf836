"""Measures that a client computes of its model and shard, by name.

A strategy asks for a measure by its name; a new one is one function and one line in MEASURES. A long one lies in a file
of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from client_service.models.low_pass import LowPass
from client_service.models.model import Model
from client_service.models.popularity_angle import PopularityTables
from client_service.runtime.interruption import Interrupt
from client_service.training.losses import bpr_of_rows
from client_service.training.margins import mean_margin
from client_service.training.sampling import PairSampler
from shared.errors import SettingsError
from shared.method.divergence import align_kernels, divergence, kernel, round_divergence
from shared.method.graph import Float64
from shared.method.settings import MethodSettings
from shared.method.spectrum import Spectrum


class TrainedClient(Protocol):
    """Inputs of a measure: a model between two rounds, and its training data."""

    model: Model
    tables: PopularityTables
    spectrum: Spectrum
    method: MethodSettings
    batches: PairSampler
    interrupt: Interrupt

    @property
    def anchor(self) -> Float64 | None: ...
    @property
    def activity(self) -> Tensor: ...
    def torch_generator(self, purpose: str) -> torch.Generator: ...


def measure_divergence(trained: TrainedClient) -> tuple[float, ...]:
    """Computes the divergence rho (Eq. 11) from the round's anchor, rounded.

    Empty without an anchor, or with too short a spectrum.
    """
    rho = None if trained.anchor is None else divergence(trained.anchor, own_kernel(trained))
    return () if rho is None else (round_divergence(rho),)


def comparable_kernels(trained: TrainedClient) -> tuple[Float64, Float64] | None:
    """Returns the anchor's kernel and the own one, as the divergence compares them.

    None without an anchor.
    """
    return None if trained.anchor is None else align_kernels(trained.anchor, own_kernel(trained))


def own_kernel(trained: TrainedClient) -> Float64:
    """Computes the client's kernel K^c (Eq. 6, 16)."""
    return kernel(spectrum_signal(trained.spectrum, trained.model, trained.method))


def spectrum_signal(spectrum: Spectrum, model: Model, method: MethodSettings) -> Float64:
    """Returns the signal of the kernel, (Phi,): the eigenvalues, or weighted eigenvalues.

    The weights (Algorithm 3) are the trained kernel of the last layer. Raises SettingsError for a model without
    kernels.
    """
    if method.signal == "eigenvalues":
        return spectrum.eigenvalues
    if not isinstance(model.encoder, LowPass):
        raise SettingsError(f"signal: expected 'eigenvalues' with the model {method.model!r}, which has no kernels")
    weighted: Float64 = spectrum.eigenvalues * model.encoder.response()[-1].detach().abs().cpu().double().numpy()
    return weighted


def measure_mean_margin(trained: TrainedClient) -> tuple[float, ...]:
    """Computes the client's mean margin M^c (Eq. 10)."""
    generator, method = trained.torch_generator("margin"), trained.method
    return (mean_margin(trained.model, trained.tables, method, generator, trained.interrupt),)


def split_by_activity(interactions: sparse.csr_array) -> Tensor:
    """Marks the half of the users with the most training items, (M,).

    1 for the more active half, else 0. With an odd number of users it has one user more.
    """
    order = np.argsort(np.diff(interactions.indptr), kind="stable")
    group = np.zeros(len(order), dtype=np.int64)
    group[order[len(order) // 2 :]] = 1
    return torch.from_numpy(group)


@torch.no_grad()
def measure_losses_by_activity(trained: TrainedClient) -> tuple[float, ...]:
    """Computes the mean BPR loss of less and of more active users (F2MF).

    It is over their training pairs. A half without a pair gets the mean over all. It can be interrupted at each batch.
    """
    device, batches = trained.activity.device, trained.batches.epoch(trained.torch_generator("activity"))
    sums, counts = torch.zeros(2, device=device), torch.zeros(2, device=device)
    for batch in trained.interrupt.check_each(batches):
        positive, negatives = trained.model.scores(batch.users, batch.items, batch.negatives, leave_one_out=False)
        losses, of = bpr_of_rows(positive, negatives, batch.excluded), trained.activity[batch.users]
        sums.index_add_(0, of, losses)
        counts.index_add_(0, of, torch.ones_like(losses))
    means = torch.where(counts > 0, sums / counts.clamp(min=1), sums.sum() / counts.sum())
    return float(means[0]), float(means[1])


def measure_local_steps(trained: TrainedClient) -> tuple[float, ...]:
    """Counts the optimiser's steps in a round with one objective."""
    return (float(trained.method.local_epochs * len(trained.batches)),)


MEASURES: dict[str, Callable[[TrainedClient], tuple[float, ...]]] = {
    "divergence": measure_divergence,
    "mean_margin": measure_mean_margin,
    "losses_by_activity": measure_losses_by_activity,
    "local_steps": measure_local_steps,
}
