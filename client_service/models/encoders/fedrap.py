"""FedRAP's model: item vectors with a common and a personal part."""

from __future__ import annotations

from torch import Tensor, nn

from client_service.models.item_table import Factors, dot_product_model, draw_normal
from client_service.models.model import Model, ModelInputs

PERSONAL_DEVIATION = 0.1


class FedRAP(Factors):
    """Encoder with a common and a personal part of each item vector.

    f_ui = <u, common_i + personal_i>. Private: `embedding` (M, d), a linear score function for each user, and
    `personal` (C, d): as long as the catalogue, so that a penalty can subtract one part from the other.
    """

    def __init__(self, given: ModelInputs) -> None:
        super().__init__(given)
        shape = (given.method.catalogue, self.width)
        self.personal = nn.Parameter(draw_normal(shape, PERSONAL_DEVIATION, stream=2))
        self.personal.register_hook(self.item.zero_absent_rows)  # type: ignore[no-untyped-call]

    def item_rows(self, items: Tensor) -> Tensor:
        rows: Tensor = self.item(items) + self.personal[self.item.places[items]]
        return rows


def build(given: ModelInputs) -> Model:
    """Builds the model with scores f_ui = <u, common_i + personal_i>."""
    return dot_product_model(FedRAP(given))
