"""FedSSP's model: kernels as a function of the eigenvalue.

Clients with different spectra can share such kernels. FedSSP: Federated Graph Learning with Spectral Knowledge and
Personalized Preference. Tan, Wan, Huang, Ye. NeurIPS 2024.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from client_service.models.low_pass import LowPass
from client_service.models.model import Model, ModelInputs, PreferenceMLPs, TwoLayers
from shared.method.graph import Float64
from shared.method.tensors import encoded_width

STRETCH = 100.0  # eigenvalues lie in [0, 1]; times this, sines tell near ones apart
LONGEST = 10_000.0  # the lowest frequency of the encoding is about one over this


class FrequencyKernels(nn.Module):
    """Kernels as an MLP of the encoded eigenvalue, (L, Phi).

    k(l) = 1 + MLP(encoded eigenvalue): one where the MLP's output is zero.
    """

    encoded: Tensor

    def __init__(self, eigenvalues: Float64, width: int, layers: int) -> None:
        super().__init__()
        encoded = torch.tensor(encode(eigenvalues, width), dtype=torch.get_default_dtype())
        self.register_buffer("encoded", encoded, persistent=False)
        self.kernel = TwoLayers(encoded_width(width), width, layers)

    def forward(self) -> Tensor:
        # Paper: attention among a graph's eigenvalues, and four filters mixed along each edge; here: one MLP on each
        # eigenvalue by itself, because LGCN has one kernel a layer and no edges during training.
        responses: Tensor = 1.0 + self.kernel(self.encoded)
        return responses.T


def build(given: ModelInputs) -> Model:
    """Builds the model; of its parameters only `kernel.*` mean the same to every client.

    Private besides: a preference (q,).
    """
    method = given.method
    encoder = LowPass(given, FrequencyKernels(given.spectrum.eigenvalues, method.width, method.layers))
    width = encoder.embedding.shape[1]
    head = PreferenceMLPs(method, alpha=encoder.alpha, residual=encoder.residual, embedding_width=width)
    return Model(encoder, head)


def encode(eigenvalues: Float64, width: int) -> Float64:
    """Encodes eigenvalues (Phi,) by sines and cosines at falling frequencies w, (Phi, encoded_width).

    [lambda, sin(100 lambda w), cos(100 lambda w)].
    """
    count = encoded_width(width) // 2
    frequencies = LONGEST ** (-np.arange(count) / count)
    angles = STRETCH * eigenvalues[:, None] * frequencies
    encoded: Float64 = np.concatenate([eigenvalues[:, None], np.sin(angles), np.cos(angles)], axis=1)
    return encoded
