"""LGCN whose kernels are a function of the eigenvalue, so that clients with different spectra can share them.

FedSSP: Federated Graph Learning with Spectral Knowledge and Personalized Preference. Tan, Wan, Huang, Ye. NeurIPS 2024.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from client_service.models.lgcn import LGCN, Pooled, TwoLayers
from client_service.models.model import Ingredients
from shared.method.exchange import encoded_width
from shared.method.graph import Float64

STRETCH = 100.0  # eigenvalues lie in [0, 1]; times this, sines tell near ones apart
LONGEST = 10_000.0  # the lowest frequency of the encoding is about one over this


class FrequencyLGCN(LGCN):
    """k(l) = 1 + MLP(encoded eigenvalue), and a private preference (q,) beside each pooled user.

    Of all parameters only `kernel.*` mean the same to every client.
    """

    exchangeable = ("kernel.", *LGCN.exchangeable)  # one name more than the base class has
    encoded: Tensor

    def __init__(self, given: Ingredients):
        super().__init__(given)
        del self.kernels  # one free number for each eigenvalue: the function takes their place
        encoded = torch.tensor(encode(given.spectrum.eigenvalues, self.width), dtype=torch.get_default_dtype())
        self.register_buffer("encoded", encoded, persistent=False)
        self.kernel = TwoLayers(encoded_width(self.width), self.width, given.method.layers)
        self.preference = nn.Parameter(torch.zeros(self.embedding.shape[1]))

    def responses(self) -> Tensor:
        """k(l) at the client's own eigenvalues, (L, Phi): ones where the MLP's output is zero.

        # Paper: attention among a graph's eigenvalues, and four filters mixed along each edge; here: one MLP on each
        # eigenvalue by itself, because LGCN has one kernel a layer and no edges during training.
        """
        found: Tensor = 1.0 + self.kernel(self.encoded)
        return found.T

    def coefficients(self, first: Tensor | None = None) -> list[Tensor]:
        """P^T Z(l) for l = 0..L (see LGCN), with the kernels above."""
        found = [self.basis.T @ self.embedding if first is None else first]
        for kernel in self.responses():
            found.append(kernel[:, None] * found[-1])
        return found

    def pooled_users(self, users: Tensor, coefficients: list[Tensor], rows: Tensor | None = None) -> Pooled:
        return self._preferring(super().pooled_users(users, coefficients, rows))

    def pooled_without(
        self, users: Tensor, items: Tensor, coefficients: list[Tensor], rows: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Pooled, Pooled]:
        left, right = super().pooled_without(users, items, coefficients, rows)
        return self._preferring(left), right

    def pooled_baskets(self, baskets: Tensor, coefficients: list[Tensor]) -> Pooled:
        return self._preferring(super().pooled_baskets(baskets, coefficients))

    def _preferring(self, users: Pooled) -> Pooled:
        return replace(users, embedding=users.embedding + self.preference)


def encode(eigenvalues: Float64, width: int) -> Float64:
    """[lambda, sin(100 lambda w), cos(100 lambda w)] at falling frequencies w: (Phi,) -> (Phi, encoded_width)."""
    count = encoded_width(width) // 2
    frequencies = LONGEST ** (-np.arange(count) / count)
    angles = STRETCH * eigenvalues[:, None] * frequencies
    encoded: Float64 = np.concatenate([eigenvalues[:, None], np.sin(angles), np.cos(angles)], axis=1)
    return encoded
