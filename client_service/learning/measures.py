"""The registry of measures: name -> a function of a client's model and shard. What one needs lies in a file of its own.

A strategy asks for a measure by its name; a new one is one function and one line in MEASURES.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from client_service.learning.activity import losses_of_groups
from client_service.learning.interrupt import Interrupt
from client_service.learning.mean_margin import mean_margin
from client_service.learning.sampling import PairSampler
from client_service.models.low_pass import LowPass
from client_service.models.model import Model
from client_service.models.popularity import PopularityTables
from shared.errors import SettingsError
from shared.method.divergence import comparable, divergence, kernel, round_divergence
from shared.method.graph import Float64
from shared.method.settings import MethodSettings
from shared.method.spectrum import Spectrum


class TrainedClient(Protocol):
    """What can be measured: a model between two rounds with all that it was trained on."""

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
    """rho (Eq. 11) against the round's anchor, rounded; nothing without one, or with too short a spectrum."""
    rho = None if trained.anchor is None else divergence(trained.anchor, own_kernel(trained))
    return () if rho is None else (round_divergence(rho),)


def compared_kernels(trained: TrainedClient) -> tuple[Float64, Float64] | None:
    """The anchor's kernel and the own one as the divergence compares them; None without an anchor."""
    return None if trained.anchor is None else comparable(trained.anchor, own_kernel(trained))


def own_kernel(trained: TrainedClient) -> Float64:
    """K^c (Eq. 6, 16)."""
    return kernel(spectrum_signal(trained.spectrum, trained.model, trained.method))


def spectrum_signal(spectrum: Spectrum, model: Model, method: MethodSettings) -> Float64:
    """The eigenvalues, or (Algorithm 3) the eigenvalues weighted by the trained kernel of the last layer, (Phi,)."""
    if method.signal == "eigenvalues":
        return spectrum.eigenvalues
    if not isinstance(model.encoder, LowPass):
        raise SettingsError(f"signal: expected 'eigenvalues' with the model {method.model!r}, which has no kernels")
    weighted: Float64 = spectrum.eigenvalues * model.encoder.response()[-1].detach().abs().cpu().double().numpy()
    return weighted


def measure_mean_margin(trained: TrainedClient) -> tuple[float, ...]:
    """M^c (Eq. 10)."""
    generator, strength = trained.torch_generator("margin"), trained.method.margin_strength
    return (mean_margin(trained.model, trained.tables, strength, generator, trained.interrupt),)


def measure_losses_by_activity(trained: TrainedClient) -> tuple[float, ...]:
    """Mean BPR loss over the training pairs of the less and of the more active half of the users."""
    generator = trained.torch_generator("activity")
    return losses_of_groups(trained.model, trained.batches, trained.activity, generator, trained.interrupt)


MEASURES: dict[str, Callable[[TrainedClient], tuple[float, ...]]] = {
    "divergence": measure_divergence,
    "mean_margin": measure_mean_margin,
    "losses_by_activity": measure_losses_by_activity,
}
