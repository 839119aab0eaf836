"""Matrix factorisation: one vector for each user, one row of the shared table for each item (FedMF, F2MF)."""

from __future__ import annotations

from client_service.models.item_table import Factors, by_dot_product
from client_service.models.model import Ingredients, Model


def build(given: Ingredients) -> Model:
    """f_ui = <u, v_i>."""
    return by_dot_product(Factors(given))
