"""LPSFed's model: the low-pass encoder with free kernels beneath both MLPs.

Only the MLPs can be shared.
"""

from __future__ import annotations

from client_service.models.low_pass import FreeKernels, LowPass
from client_service.models.model import Model, ModelInputs, PooledMLPs


def build(given: ModelInputs) -> Model:
    """Builds the model; Z(0), the kernels and the weight of the base path are private."""
    encoder = LowPass(given, FreeKernels(given.method.layers, len(given.spectrum.singular)))
    return Model(encoder, PooledMLPs(given.method, alpha=encoder.alpha, residual=encoder.residual))
