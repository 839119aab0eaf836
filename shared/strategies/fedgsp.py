"""FedGSP: each client gets a mean of its own, weighted by its graph's spectrum.

Clients that are alike at low frequencies and unlike at high ones weigh most.

Yu. Homophily Heterogeneity Matters in Graph Federated Learning: A Spectrum Sharing and Complementing Perspective. The
appendix, section III. Shapes: M clients, K order of the filter, F features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np
from pydantic import Field

from shared.method.declaration import TensorSpec
from shared.method.graph import Float64
from shared.method.parameters import Float32, Parameters, State, Update
from shared.method.settings import MethodSettings
from shared.method.tensors import EXCHANGES
from shared.strategies.aggregation import mean_of_updates
from shared.strategies.collaboration_graph import (
    Collaboration,
    CollaborationStep,
    GraphRule,
    Terms,
    advance_weights,
    carry_weights,
    recall_collaboration,
)
from shared.strategies.local_client import FitInput, LocalClient
from shared.strategies.strategy import OwnSettings, Strategy, own_mean, read_strategy_settings

MODEL, FILTER = "unifilter", "filter.weight"
LOW, HIGH = "signature.low", "signature.high"
MEASURES = {LOW: "signature_low", HIGH: "signature_high"}


# Paper: nothing is said of a client's own weight; here: half by default, because the weights of clients that are unlike
# come near 0 on the diagonal, and clients that hand their models to each other every round do not converge.
class FedGSPSettings(OwnSettings):
    """Settings of the collaboration graph.

    weight_floor: kappa, least spread of a column as a multiple of the mean one; 0: as published.
    sharpness: g, gamma over the mean |t|.
    gamma: gamma of Eq. 19, in place of sharpness; 0: by sharpness.
    least_own: least weight of a client's own parameters.
    uniform: all columns have equal weight.
    terms: half of t that counts, or both.
    shares: all tensors, or the filter's alone.
    """

    weight_floor: float = Field(0.1, ge=0, le=1e6)
    sharpness: float = Field(1.0, gt=0, le=1e6)
    gamma: float = Field(0.0, ge=0, le=1e12)
    least_own: float = Field(0.5, ge=0, le=1)
    uniform: bool = False
    terms: Terms = "both"
    shares: Literal["all", "filter"] = "all"

    @property
    def rule(self) -> GraphRule:
        """Rule of the collaboration graph."""
        gamma = self.gamma or None
        return GraphRule(self.weight_floor, self.sharpness, gamma, self.least_own, self.uniform, self.terms)


def fit_with_signatures(client: LocalClient, received: FitInput, *, method: MethodSettings, shares: str) -> Parameters:
    """Trains, and sends parameters and signatures.

    Signatures follow from the graph alone and so are the same every round.
    """
    client.load(received)
    client.train()
    arrays = {name: value for name, value in client.arrays().items() if shares == "all" or name == FILTER}
    shape = (method.nodes.order, method.nodes.features)
    reports = {n: np.array(client.measure(by), dtype=np.float32).reshape(shape) for n, by in MEASURES.items()}
    return Parameters({**arrays, **reports})


def collaborate(before: State, updates: Sequence[Update], rule: GraphRule) -> Collaboration:
    """Advances R, S and W of each order by one step.

    W is that of the round before; only clients who have sent are in it, by name.
    """
    names = tuple(update.client for update in updates)
    low, high = (
        clip_signatures(np.stack([one.arrays[side] for one in updates]).astype(np.float64)) for side in (LOW, HIGH)
    )
    earlier, steps = recall_collaboration(before.memory), list[CollaborationStep]()
    for order in range(low.shape[1]):
        known, weights = ((), np.zeros((0, 0))) if earlier is None else (earlier.clients, earlier.weights[order])
        carried = carry_weights(weights, known, names)
        steps.append(advance_weights(low[:, order], high[:, order], carried, rule))
    columns = np.array([step.effective_columns for step in steps]).T
    return Collaboration(names, np.stack([step.weights for step in steps]), columns)


def clip_signatures(signatures: Float64) -> Float64:
    """Divides signatures (M, K, F) longer than 1 by their length.

    An honest silo has none.
    """
    # Paper: signatures are taken as they come; here: of length 1 at most, because a silo that sends one of length 1,000
    # at high frequencies, unlike all others, becomes the whole model of everybody.
    lengths = np.linalg.norm(signatures, axis=-1, keepdims=True)
    shortened: Float64 = signatures / np.maximum(lengths, 1.0)
    return shortened


def combine_by_spectra(state: State, updates: Sequence[Update], *, rule: GraphRule) -> State:
    """Computes each sender's mean by W, and the plain mean for all others.

    A client that is absent keeps its last mean.

    filter.weight[k] is mixed by W of order k, the rest, and filter.weight[0], by the mean of all W.
    """
    ordered = sorted(updates, key=lambda update: update.client)
    found = collaborate(state, ordered, rule)
    own: dict[str, dict[str, Float32]] = {name: {} for name in found.clients}
    for name in state.arrays:  # tensor by tensor: of what was sent, one tensor of each client lies in memory
        sent = np.stack([np.asarray(update.arrays[name], dtype=np.float64) for update in ordered])
        mixed = mix_filter(found, sent) if name == FILTER else np.tensordot(found.overall, sent, axes=1)
        for client, value in zip(found.clients, mixed.astype(np.float32), strict=True):
            own[client][name] = value
    centre = mean_of_updates(state, ordered)
    return replace(centre, own={**state.own, **own}, memory=found.remember())


def mix_filter(found: Collaboration, sent: Float64) -> Float64:
    """Mixes each filter coefficient k by the weights of order k, (M, K + 1)."""
    by_order = np.concatenate([found.overall[None], found.weights])
    mixed: Float64 = np.einsum("kij,jk->ik", by_order, sent)
    return mixed


def keep_memory(before: State, centre: State) -> State:
    """Returns the centre with the memory that the combination has given."""
    del before
    return centre


def fedgsp(method: MethodSettings) -> Strategy:
    """Builds FedGSP: all of UniFilter is mixed by W.

    Leading directions of the bases go up, and tell of the features.
    """
    settings = read_strategy_settings(FedGSPSettings, method)
    names: Mapping[str, frozenset[str]] = {"all": EXCHANGES[MODEL].names, "filter": frozenset({FILTER})}
    shape = (method.nodes.order, method.nodes.features)
    return Strategy(
        "fedgsp",
        shared=names[settings.shares].__contains__,
        reports=(TensorSpec(name=LOW, shape=shape), TensorSpec(name=HIGH, shape=shape)),
        shard_statistics=frozenset({"features"}),
        fit=partial(fit_with_signatures, method=method, shares=settings.shares),
        combine=partial(combine_by_spectra, rule=settings.rule),
        step=keep_memory,
        answer=own_mean,
        collaboration=recall_collaboration,
        model=MODEL,
        settings=settings,
    )
