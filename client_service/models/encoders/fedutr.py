"""FedUTR's model: item text, changed by a shared table and fused with what interactions show.

Equations: docs/equations.md. Shapes: M users, N items, d width, B rows.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from client_service.models.item_table import Factors, dot_product_model
from client_service.models.model import Model, ModelInputs
from shared.strategies.fedutr import ADAPTATION, read_fedutr_settings

EPSILON = 1e-5  # of the layer normalisation


class FusionValues(NamedTuple):
    """weight (d, d), bias, gain and shift (d,) of a fusion."""

    weight: Tensor
    bias: Tensor
    gain: Tensor
    shift: Tensor

    def interactions(self, rows: Tensor) -> Tensor:
        """Computes the interactions' part G(E) = ReLU(E W^T + b), (B, d)."""
        return functional.relu(functional.linear(rows, self.weight, self.bias))

    def normalise(self, rows: Tensor) -> Tensor:
        """Computes LayerNorm(E) * g + c, (B, d)."""
        return functional.layer_norm(rows, rows.shape[1:], self.gain, self.shift, EPSILON)

    def mixed(self, others: FusionValues, share: Tensor) -> FusionValues:
        """Mixes these values with others, by a share rho of these.

        share: rho of each output unit, (d,); the others have 1 - rho.
        """
        sides = (share[:, None], share, share, share)
        return FusionValues(*(torch.lerp(b, a, rho) for a, b, rho in zip(self, others, sides, strict=True)))


class FusionLayer(nn.Module):
    """The parameters of a fusion (CIFM)."""

    def __init__(self, width: int, *, trained: bool) -> None:
        super().__init__()
        starts = {"weight": torch.zeros(width, width), "bias": torch.zeros(width)}
        starts |= {"gain": torch.ones(width), "shift": torch.zeros(width)}
        for name, start in starts.items():  # a run begins with values that its seed draws
            self.register_parameter(name, nn.Parameter(start, requires_grad=trained))

    def values(self) -> FusionValues:
        """Returns the parameters as values."""
        return FusionValues(*(self.get_parameter(name) for name in FusionValues._fields))

    @torch.no_grad()
    def copy_values(self, values: FusionValues) -> None:
        """Copies these values to the parameters."""
        for mine, theirs in zip(self.values(), values, strict=True):
            mine.copy_(theirs)


class Adaptation(nn.Module):
    """Share of the common fusion, and of the silo's own, in each output unit (LAM)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.common = nn.Parameter(torch.zeros(width))
        self.own = nn.Parameter(torch.zeros(width))
        self.bias = nn.Parameter(torch.zeros(()))

    def share(self, common: FusionValues, own: FusionValues) -> Tensor:
        """Computes the share of the common fusion in each output unit, (d,).

        rho_j = sigmoid(<a_g, W_g[j]> + <a_u, W_u[j]> + c).
        """
        return torch.sigmoid(common.weight @ self.common + own.weight @ self.own + self.bias)


class FedUTR(Factors):
    """Encoder of FedUTR.

    f_ui = <u, EF_i>, EF = LayerNorm(G(E) + E), E_i an item's text and its row of the shared table. Private: `embedding`
    (M, d); `adaptation`; `local`, the fusion as the silo's own training left it last, and `local_known`, 1 once there
    was one. Shared: `item.table` and `fusion`.
    """

    # Paper: one fusion and one LAM for each user's device; here: one for each silo, as for all baselines.
    row_kinds = MappingProxyType({"embedding": "users"})

    def __init__(self, given: ModelInputs) -> None:
        super().__init__(given)
        self.switches = read_fedutr_settings(given.method)
        self.fusion, self.local = FusionLayer(self.width, trained=True), FusionLayer(self.width, trained=False)
        self.adaptation = Adaptation(self.width)
        self.local_known = nn.Parameter(torch.zeros(()), requires_grad=False)
        self.trained: str | None = None  # of the current training

    def item_rows(self, items: Tensor) -> Tensor:
        return self.fuse(super().item_rows(items))

    def fuse(self, rows: Tensor) -> Tensor:
        """Computes EF of the rows E, (B, d)."""
        values = self.fusion_values()
        fused = values.interactions(rows) + rows if self.switches.fusion else rows
        return values.normalise(fused) if self.switches.fusion and self.switches.normalise else fused

    def fusion_values(self) -> FusionValues:
        """Finds the fusion that scores are computed with.

        While the adaptation is trained, it is the one that the adaptation mixes.
        """
        return self.mix_fusions() if self.trained == ADAPTATION else self.fusion.values()

    def mix_fusions(self) -> FusionValues:
        """Mixes the common fusion and the silo's own by the adaptation."""
        common, own = self.fusion.values(), self.local.values()
        return common.mixed(own, self.adaptation.share(common, own))

    def begin_training(self, only: str) -> bool:
        """Prepares a training; returns False for an adaptation without a fusion of the silo's own.

        Before a silo has trained one, there is nothing to mix with the common fusion.
        """
        if only == ADAPTATION and not self.local_known:
            return False
        self.trained = only
        return True

    @torch.no_grad()
    def finish_training(self) -> None:
        """Updates the fusions after a training.

        After that of the adaptation, the mixed fusion becomes the one to train; after another one, the fusion is kept
        as the silo's own.
        """
        if self.trained == ADAPTATION:
            self.fusion.copy_values(self.mix_fusions())
        elif self.trained is not None:
            self.local.copy_values(self.fusion.values())
            self.local_known.fill_(1.0)
        self.trained = None


def build(given: ModelInputs) -> Model:
    """Makes the model with the score f_ui = <u, EF_i>."""
    return dot_product_model(FedUTR(given))
