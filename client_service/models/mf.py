"""Matrix factorisation: one vector for each user, one row of the shared table for each item."""

from __future__ import annotations

from client_service.models.factors import Factors


class MF(Factors):
    """Nothing besides what all models with an item table have (FedMF, F2MF)."""
