"""What training and serving ask of any model. One file a model; its line is in models/registry.py."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor, nn

from client_service.models.start import Start
from shared.method.settings import MethodSettings
from shared.method.spectrum import Spectrum


@dataclass(frozen=True)
class Ingredients:
    """What a model is built from. interactions (M, N): the training graph; places (N,): each item's row in the
    federation's catalogue, None where there is none; start: the filter at which an encoder with one begins."""

    spectrum: Spectrum
    interactions: sparse.csr_array
    start: Start | None
    places: NDArray[np.int64] | None
    method: MethodSettings


class Model(nn.Module):
    """M users, N items, and a score f for each pair; higher is better."""

    users: int
    items: int
    exchangeable: tuple[str, ...] = ()  # what a strategy may share: the parameters whose names start so

    def scores(self, users: Tensor, items: Tensor, negatives: Tensor, *, leave_one_out: bool) -> tuple[Tensor, Tensor]:
        """f of each user with the item beside it, (B,), (B,) -> (B,), and with every negative, (n,) -> (B, n).

        leave_one_out: score the positives as if their own edges were not in the graph, where the model has one.
        """
        raise NotImplementedError

    def pull_to_start(self, share: float) -> None:
        """Move the private embeddings by this share of the way back to where they began."""
        raise NotImplementedError

    def trained(self) -> None:
        """Called after the first parameters and each training, for a model that ranks by other than it exchanges."""
