"""Matrix factorisation: a user vector times a row of the shared item table.

Used by FedMF and F2MF.
"""

from __future__ import annotations

from client_service.models.item_table import Factors, dot_product_model
from client_service.models.model import Model, ModelInputs


def build(given: ModelInputs) -> Model:
    """Builds the model with scores f_ui = <u, v_i>."""
    return dot_product_model(Factors(given))
