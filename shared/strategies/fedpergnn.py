"""FedPerGNN: graph attention in each silo; clipped, noisy and invented changes of the table.

Wu, Wu, Lyu, Qi, Huang, Xie: A federated graph neural network framework for privacy-preserving personalization. Nature
Communications 2022.
"""

from __future__ import annotations

import numpy as np

from shared.method.graph import Float64
from shared.method.parameters import Float32, Parameters
from shared.method.settings import MethodSettings
from shared.method.tensors import ITEM_TABLE
from shared.strategies.aggregation import is_item_table, mean_of_moved_rows, moved_rows
from shared.strategies.local_client import LocalClient, Objective
from shared.strategies.strategy import Strategy

CLIP = 0.1  # largest change of an entry in a round
SCALE = 0.002  # scale of the Laplace noise: the paper's 2 * learning rate 0.01 * clip 0.1 / epsilon 1, of one upload
PSEUDO_ITEMS = 1000  # largest number of rows of items that the silo does not have, changed as well


def fit_noisy(client: LocalClient, received: Parameters) -> Parameters:
    """Trains with BPR, and sends the table clipped, with pseudo items and noise."""
    # Paper: squared error of ratings; here: BPR, because the data are implicit.
    # Paper: a third party matches users with common items; here: none, because a silo sees its users' whole graph
    # itself.
    client.load(received)
    client.train(Objective(loss="bpr"))
    streams = (client.generator("pseudo items", once_a_run=True), client.generator("table"))
    table = protect_table(received.arrays[ITEM_TABLE], client.arrays()[ITEM_TABLE], *streams)
    return Parameters({ITEM_TABLE: table})


def protect_table(
    before: Float32, after: Float32, chosen: np.random.Generator, generator: np.random.Generator
) -> Float32:
    """Protects the trained table (C, d): clips moved rows, adds pseudo items and noise.

    For a change of 2 CLIP, an entry's privacy budget in one round is 2 CLIP / SCALE = 100: the noise blurs, and is no
    useful guarantee. Pseudo items hide the items that a silo has. They are the same in all rounds of a run: new ones
    each round could be told from the silo's own items, which are in every round.
    """
    start = np.asarray(before, dtype=np.float64)
    change, real = after - start, moved_rows(before, after)
    pseudo = chosen.permutation(np.flatnonzero(~real))[:PSEUDO_ITEMS] if real.any() else np.flatnonzero(real)
    change[pseudo] = _draw_similar_rows(change[real], len(pseudo), generator)
    touched = real.copy()
    touched[pseudo] = True
    noise = generator.laplace(0.0, SCALE, (int(touched.sum()), start.shape[1]))
    start[touched] += np.clip(change[touched], -CLIP, CLIP) + noise
    return start.astype(np.float32)


def _draw_similar_rows(change: Float64, count: int, generator: np.random.Generator) -> Float64:
    """Draws normal rows (count, d) with the real ones' mean and deviation by column."""
    if count == 0:
        return np.zeros((0, change.shape[1]))
    return generator.normal(change.mean(0), change.std(0), (count, change.shape[1]))


def fedpergnn(method: MethodSettings) -> Strategy:
    """Builds FedPerGNN: the noisy item table is shared.

    Private: user vectors, attention and the graph of the silo's users and items, which in the original is one user's
    and its neighbours'.
    """
    del method
    return Strategy(
        "fedpergnn",
        shared=is_item_table,
        fit=fit_noisy,
        combine=mean_of_moved_rows,
        model="attention",
    )
