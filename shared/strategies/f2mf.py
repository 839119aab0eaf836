"""F2MF: federated matrix factorisation that keeps two user groups' losses close.

Liu, Ge, Xu, Zhang, Marian: Fairness-aware Federated Matrix Factorization. RecSys 2022.
"""

from __future__ import annotations

import math
from functools import partial

from pydantic import Field

from shared.method.parameters import Parameters, Scalars
from shared.method.settings import MethodSettings
from shared.method.tensors import Range
from shared.strategies.aggregation import is_item_table, mean_of_moved_rows
from shared.strategies.fedmf import l2_penalty
from shared.strategies.local_client import LocalClient, Objective
from shared.strategies.strategy import OwnSettings, Scalar, Strategy, read_strategy_settings

GROUPS = ("lighter", "heavier")  # the less and the more active half of a silo's users
NOISE = 0.01  # standard deviation of the Gaussian noise on a group's loss
LOSS = Scalar(
    Range(0.0, 100.0), returned=True
)  # a mean BPR loss is never below 0, and above 100 never of a trained model


class F2MFSettings(OwnSettings):
    """Settings of F2MF.

    strength: lambda, how much the groups' performances are held near each other. power: rho.
    """

    strength: float = Field(0.5, ge=0, le=1)
    power: float = Field(1.0, ge=1, le=10)


def group_weights(scalars: Scalars, settings: F2MFSettings) -> tuple[float, float]:
    """Computes the weight of each group's loss; the larger loss counts more.

    1 - lambda rho sign(A - B) |A - B|^(rho - 1), A its own performance and B the other's. Performance is minus the
    loss. 1 for both where nothing is known yet.
    """
    if not all(name in scalars for name in GROUPS):
        return (1.0, 1.0)
    gap = scalars["heavier"] - scalars["lighter"]  # A - B of the lighter group
    change = math.copysign(abs(gap) ** (settings.power - 1.0), gap)
    slope = 0.0 if gap == 0.0 else settings.strength * settings.power * change
    return (1.0 - slope, 1.0 + slope)


def fit_fair(client: LocalClient, received: Parameters, *, settings: F2MFSettings) -> Parameters:
    """Trains FedMF with BPR and weighted groups.

    Two noisy group losses leave beside the table.
    """
    # Paper: a user scales its whole update; here: the loss of its pairs, because the silo's users train together.
    client.load(received)
    weights = group_weights(received.scalars, settings)
    client.train(Objective(loss="bpr", penalty=l2_penalty, group_weights=weights))
    noise = client.generator("fairness").normal(0.0, NOISE, len(GROUPS))
    losses = zip(GROUPS, client.measure("losses_by_activity"), noise, strict=True)
    noisy = {name: LOSS.range.clamp(float(loss + error)) for name, loss, error in losses}
    return Parameters(client.arrays(), noisy)


def f2mf(method: MethodSettings) -> Strategy:
    """Builds F2MF: the item table and noisy group losses are shared.

    User vectors and the users' groups stay private.
    """
    settings = read_strategy_settings(F2MFSettings, method)
    return Strategy(
        "f2mf",
        shared=is_item_table,
        scalars=dict.fromkeys(GROUPS, LOSS),
        fit=partial(fit_fair, settings=settings),
        settings=settings,
        combine=mean_of_moved_rows,
        model="mf",
    )
