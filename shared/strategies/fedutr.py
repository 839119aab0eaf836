"""FedUTR and FedUTR-SAR: items begin at their text; table and fusion are averaged.

Federated Recommendation with Augmented Universal Textual Representation.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

import numpy as np
from pydantic import Field

from shared.method.parameters import Parameters
from shared.method.settings import MethodSettings, validate_settings
from shared.method.tensors import FUSION, ITEM_TABLE
from shared.strategies.aggregation import mean_of_moved_rows
from shared.strategies.local_client import LocalClient, Objective, Shrinkage
from shared.strategies.strategy import OwnSettings, Strategy, read_strategy_settings

ADAPTATION = "adaptation."
"""Prefix of the private parameters that mix the common fusion with the silo's own."""
REGULARISED = (f"{FUSION}weight", f"{FUSION}bias")


class FedUTRSettings(OwnSettings):
    """Settings of FedUTR.

    sparsity: lambda of the L1 norm.
    fusion (CIFM), normalise (LayerNorm), adaptation (LAM): false leaves it out.
    table_mean: each row's mean over all clients, or over the clients that moved it, which secure aggregation cannot
    use.
    taken_negatives: sample negatives only among items that some user of the silo has, so that new items keep their
    scores.
    noise_scale: scale of the Laplace noise on the table that leaves; nothing is clipped, so that no epsilon follows.
    """

    sparsity: float = Field(0.1, ge=0, le=1e3)
    fusion: bool = True
    normalise: bool = True
    adaptation: bool = True
    table_mean: Literal["all", "moved"] = "all"
    taken_negatives: bool = False
    noise_scale: float = Field(0.0, ge=0, le=1e3)


def read_fedutr_settings(method: MethodSettings) -> FedUTRSettings:
    """Reads the FedUTR settings of a run, whichever strategy trains the model."""
    known = {name: value for name, value in method.strategy.items() if name in FedUTRSettings.model_fields}
    return validate_settings(FedUTRSettings, known)


def is_shared(settings: FedUTRSettings, name: str) -> bool:
    """Tells whether a silo shares a parameter: the item table or the fusion."""
    return name == ITEM_TABLE or (settings.fusion and name.startswith(FUSION))


def fit_adapted(client: LocalClient, received: Parameters, *, settings: FedUTRSettings) -> Parameters:
    """Trains the adaptation with all else frozen, then the rest from the mixed fusion."""
    # Paper: says not how G_LAM is trained; here: first and alone, as no gradient reaches it once its
    # result is set.
    client.load(received)
    if settings.fusion and settings.adaptation:
        client.train(Objective(loss="bce", only=ADAPTATION, taken_negatives=settings.taken_negatives))
    # Paper: an L1 norm in the loss; here: its proximal step, which the proof of convergence assumes and which
    # reaches zero. Gain and shift are left out of it: without a gain nothing would be left of the normalised items.
    shrinkage = Shrinkage(REGULARISED, settings.sparsity) if settings.fusion and settings.sparsity else None
    client.train(Objective(loss="bce", shrinkage=shrinkage, taken_negatives=settings.taken_negatives))
    sent = {name: value for name, value in client.arrays().items() if is_shared(settings, name)}
    if settings.noise_scale:
        noise = client.generator("table").laplace(0.0, settings.noise_scale, sent[ITEM_TABLE].shape)
        sent[ITEM_TABLE] = (sent[ITEM_TABLE] + noise).astype(np.float32)
    return Parameters(sent)


def _build(name: str, method: MethodSettings) -> Strategy:
    settings = read_strategy_settings(FedUTRSettings, method)
    return Strategy(
        name,
        shared=partial(is_shared, settings),
        fit=partial(fit_adapted, settings=settings),
        combine=mean_of_moved_rows if settings.table_mean == "moved" else None,
        settings=settings,
        model=name,
    )


def fedutr(method: MethodSettings) -> Strategy:
    """Builds FedUTR: the item table and the fusion are shared.

    Private: user vectors, the adaptation, and the fusion that it mixes.
    """
    return _build("fedutr", method)


def fedutr_sar(method: MethodSettings) -> Strategy:
    """Builds FedUTR with sparsity-aware residuals.

    Their two numbers are private, as are the users' counts of items.
    """
    return _build("fedutr_sar", method)
