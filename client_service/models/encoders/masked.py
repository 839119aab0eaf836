"""FED-PUB's model: LGCN with a private mask on each weight of its two MLPs.

The weight in use is weight * mask, entry by entry.

Personalized Subgraph Federated Learning (FED-PUB). Baek, Jeong, Jin, Yoon, Hwang. ICML 2023.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from client_service.models.encoders import lgcn
from client_service.models.model import Model, ModelInputs, PooledMLPs

WEIGHT, MASK = ".parametrizations.weight.original", ".parametrizations.weight.0.mask"  # as torch names the two


class WeightMask(nn.Module):
    """Mask that multiplies a weight entry by entry; it starts at one."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.mask = nn.Parameter(torch.ones_like(weight))

    def forward(self, weight: Tensor) -> Tensor:
        return weight * self.mask


class MaskedModel(Model):
    """Model whose MLP weights are read through masks; biases have none.

    Parameters have the names of the model without masks; each weight's mask is "mask.<name>", which is private.
    """

    def __init__(self, plain: Model) -> None:
        super().__init__(plain.encoder, plain.head)
        assert isinstance(plain.head, PooledMLPs)
        for mlp in (plain.head.pooling, plain.head.predictive):
            for linear in (mlp.hidden, mlp.output):
                parametrize.register_parametrization(linear, "weight", WeightMask(linear.weight.detach()))

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, nn.Parameter]]:
        """Yields weights under their exchanged names, and masks as "mask.<name of the weight>"."""
        for name, parameter in super().named_parameters(prefix, recurse, remove_duplicate):
            yield unmasked_name(name), parameter


def unmasked_name(name: str) -> str:
    """Returns a parameter's exchanged name: that without masks, or "mask." before it."""
    if name.endswith(MASK):
        return f"mask.{name.removesuffix(MASK)}.weight"
    return f"{name.removesuffix(WEIGHT)}.weight" if name.endswith(WEIGHT) else name


def build(given: ModelInputs) -> Model:
    """Builds LGCN's model with a mask on each weight of its MLPs."""
    return MaskedModel(lgcn.build(given))
