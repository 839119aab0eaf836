"""FedRAP's model: an item's vector is a common part that all silos share and a personal part of the silo's own."""

from __future__ import annotations

from torch import Tensor, nn

from client_service.models.item_table import Factors, by_dot_product, normal
from client_service.models.model import Ingredients, Model

PERSONAL_DEVIATION = 0.1


class FedRAP(Factors):
    """f_ui = <u, common_i + personal_i>. Private: `embedding` (M, d), a linear score function for each user, and
    `personal` (C, d): as long as the catalogue, so that a penalty can take one part from the other."""

    def __init__(self, given: Ingredients) -> None:
        super().__init__(given)
        shape = (given.method.catalogue, self.width)
        self.personal = nn.Parameter(normal(shape, PERSONAL_DEVIATION, stream=2))
        self.personal.register_hook(self.item.own_rows)  # type: ignore[no-untyped-call]

    def item_rows(self, items: Tensor) -> Tensor:
        rows: Tensor = self.item(items) + self.personal[self.item.places[items]]
        return rows


def build(given: Ingredients) -> Model:
    """f_ui = <u, common_i + personal_i>."""
    return by_dot_product(FedRAP(given))
