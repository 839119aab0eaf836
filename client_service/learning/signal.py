"""A client's spectrum and trained kernels -> the signal K^c that its divergence compares with the anchor's (Eq. 6)."""

from __future__ import annotations

from client_service.models.low_pass import LowPass
from client_service.models.model import Model
from shared.errors import SettingsError
from shared.method.graph import Float64
from shared.method.settings import MethodSettings
from shared.method.spectrum import Spectrum


def spectrum_signal(spectrum: Spectrum, model: Model, method: MethodSettings) -> Float64:
    """The eigenvalues, or (Algorithm 3) the eigenvalues weighted by the trained kernel of the last layer, (Phi,)."""
    if method.signal == "eigenvalues":
        return spectrum.eigenvalues
    if not isinstance(model.encoder, LowPass):
        raise SettingsError(f"signal: expected 'eigenvalues' with the model {method.model!r}, which has no kernels")
    weighted: Float64 = spectrum.eigenvalues * model.encoder.response()[-1].detach().abs().cpu().double().numpy()
    return weighted
