"""The shadows' shards -> what an attacker asks of each: the truth that its scores are held against.

Shapes: S shadows, M users and N items of the population, T targets.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.attacks.population import Bool, Population, make_shard
from benchmarks.attacks.shadows import draw_shadow
from shared.method.graph import Float64

USER, PAIR, ITEM, SIZE, POPULAR, INTERACTIONS = "user", "pair", "item", "size", "popular", "interactions"
ASKED = {
    USER: "is this user in the shard?",
    PAIR: "is this interaction of a user who is in the shard?",
    ITEM: "is this item in the shard?",
    SIZE: "does the shard have more interactions than it usually has?",
    POPULAR: "has this item a larger share of the shard's interactions than it usually has?",
    INTERACTIONS: "which of all interactions that could be in the shard are?",
}


def answer_questions(population: Population, seed: int, attacked: slice, shadows: int) -> dict[str, Bool]:
    """The true answers (S, T) to every question. What is usual is taken from the shadows that are not attacked."""
    draws = [draw_shadow(population, seed, number) for number in range(shadows)]
    shards = [make_shard(population, draw) for draw in draws]
    graphs = [shard.training_graph(population.train.shape).toarray() > 0 for shard in shards]
    answers = {
        USER: np.stack([draw.users[population.coins] for draw in draws]),
        PAIR: np.stack([draw.pairs for draw in draws]),
        ITEM: np.stack([np.isin(population.rare, shard.items) for shard in shards]),
        SIZE: _above_median(np.stack([graph.sum(keepdims=True)[0] for graph in graphs]), attacked),
        POPULAR: _above_median(_item_shares(graphs, population), attacked),
        INTERACTIONS: _training_interactions(graphs, population),
    }
    return {question: answer.astype(bool) for question, answer in answers.items()}


def _item_shares(graphs: Sequence[Bool], population: Population) -> Float64:
    """(S, T): of the items that are never missing as a whole."""
    items = np.setdiff1d(np.arange(population.train.shape[1]), population.rare)
    shares: Float64 = np.stack([graph[:, items].sum(axis=0) / graph.sum() for graph in graphs])
    return shares


def _above_median(values: Float64, attacked: slice) -> Bool:
    """(S, T): above the median of the shadows that are not attacked."""
    own = np.ones(len(values), dtype=bool)
    own[attacked] = False
    above: Bool = values > np.median(values[own], axis=0)
    return above


def _training_interactions(graphs: Sequence[Bool], population: Population) -> Bool:
    """Every training pair of the population."""
    users, items = population.train.nonzero()
    return np.stack([graph[users, items] for graph in graphs])
