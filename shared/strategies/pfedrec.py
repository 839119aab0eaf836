"""PFedRec: private score functions and a shared item table, trained in turn.

Each silo ranks with the table that it has tuned.

Zhang, Long, Zhou, Yan, Zhang, Zhang, Yang: Dual Personalization on Federated Recommendation. IJCAI 2023.
"""

from __future__ import annotations

from functools import partial

from pydantic import Field

from shared.method.settings import MethodSettings
from shared.strategies.aggregation import is_item_table, mean_of_moved_rows
from shared.strategies.local_client import Objective
from shared.strategies.strategy import OwnSettings, Strategy, fit_plain, read_strategy_settings


class PFedRecSettings(OwnSettings):
    """Settings of PFedRec.

    item_rate: the item table's learning rate, as a multiple of the score functions'.
    """

    # Paper: the number of items times a constant; here: a factor that is 1 by default, because a row is averaged over
    # the silos that moved it and Adam's steps do not shrink with the number of samples.
    item_rate: float = Field(1.0, gt=0, le=1e7)


def alternate_objectives(settings: PFedRecSettings) -> tuple[Objective, Objective]:
    """Returns the round's objectives: epochs on score functions, then on the item table."""
    # Paper: both steps on each batch; here: on whole epochs, because a batch of a silo holds pairs of many users.
    return Objective(loss="bce", only="embedding"), Objective(loss="bce", only="item.", rate=settings.item_rate)


def pfedrec(method: MethodSettings) -> Strategy:
    """Builds PFedRec: the item table is shared.

    Private: a linear score function for each user (in the original the only thing that a device keeps), and the
    silo's tuned item vectors.
    """
    settings = read_strategy_settings(PFedRecSettings, method)
    fit = partial(fit_plain, objectives=alternate_objectives(settings))
    return Strategy(
        "pfedrec", shared=is_item_table, fit=fit, settings=settings, combine=mean_of_moved_rows, model="pfedrec"
    )
