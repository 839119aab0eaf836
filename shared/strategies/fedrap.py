"""FedRAP: item vectors of an averaged common part and a distant personal part.

Li, Long, Zhou: Federated Recommendation with Additive Personalization. ICLR 2024.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from pydantic import Field

from shared.method.settings import MethodSettings
from shared.method.tensors import ITEM_TABLE
from shared.strategies.aggregation import is_item_table, mean_of_moved_rows
from shared.strategies.local_client import Objective
from shared.strategies.strategy import OwnSettings, Strategy, fit_plain, read_strategy_settings


class FedRAPSettings(OwnSettings):
    """Settings of FedRAP.

    distance: lambda, how much the two parts are held apart. sparsity: mu, how much the common one is held sparse.
    """

    distance: float = Field(0.01, ge=0, le=1e3)
    sparsity: float = Field(0.01, ge=0, le=1e3)


@dataclass(frozen=True)
class AdditivePenalty:
    """Penalty - lambda MSE(personal, common) + mu L1(common), means over the table."""

    # Paper: a sum for L1; here: a mean, because a sum grows with the catalogue and then zeroes the table.
    settings: FedRAPSettings

    def __call__(self, own: Mapping[str, Any], received: Mapping[str, Any]) -> Any:
        del received
        common, personal = own[ITEM_TABLE], own["personal"]
        distance = ((personal - common) ** 2).mean()
        return self.settings.sparsity * abs(common).mean() - self.settings.distance * distance


def fedrap(method: MethodSettings) -> Strategy:
    """Builds FedRAP: the common part of item vectors is shared.

    Private: a score function for each user, and the personal part, one for the silo (in the original one for each
    user's device).
    """
    settings = read_strategy_settings(FedRAPSettings, method)
    objective = Objective(loss="bce", penalty=AdditivePenalty(settings))
    return Strategy(
        "fedrap",
        shared=is_item_table,
        fit=partial(fit_plain, objectives=(objective,)),
        settings=settings,
        combine=mean_of_moved_rows,
        model="fedrap",
    )
