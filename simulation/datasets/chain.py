"""A seed -> the shops of one chain, for demonstrations: silos with customers of their own and mostly the same items.

How the data are made. Every item belongs to one of 60 themes (a quality and a genre, which its title tells) and has a
popularity of its own, a power law, that is the same in all shops. Every customer has a taste: weights of the themes,
drawn from one Dirichlet law for the whole chain, in which each shop stresses some themes more than others. A customer
buys items in proportion to taste times popularity, and a few outside it. A shop has nine tenths of the catalogue in
stock, drawn at random. The second shop has half as many customers as the first one, the third a third, and so on.

Nothing in this knows of any model. What pooling is worth follows from the one thing that the shops have in common: who
likes one item of a theme likes the others, and a small shop has too few customers to see that for most items.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from shared.errors import DataError
from simulation.datasets.dataset import WHOLE, Dataset, assemble_dataset
from simulation.datasets.synthetic import KINDS, QUALITIES, THINGS, describe_items, draw_pairs, make_ids

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

USERS, ITEMS = 1200, 800
THEMES = 60  # of 10 genres, each in 6 qualities
TASTE = 0.05  # Dirichlet parameter of a customer's themes: small, so that a customer likes few of them
REGION = 0.5  # standard deviation of the logarithm of what a shop's customers stress
ASTRAY = 0.02  # share of a customer's weight that lies on all items alike
POPULARITY = 0.8  # exponent of the power law
STOCK = 0.9  # share of the catalogue that a shop has
BOUGHT, SPREAD = 20.0, 0.5  # items of a customer: mean, and standard deviation of the logarithm
FEWEST, MOST = 5, 100
MOST_SHOPS = 50  # the smallest then has five customers


@dataclass(frozen=True, eq=False)
class Chain:
    """The data of all shops together, and each customer's shop: user, shop (from 0)."""

    dataset: Dataset
    shops: pl.DataFrame


def generate_chain(seed: int, shops: int) -> Chain:
    """The same for the same seed and number of shops. DataError for more shops than there are customers for."""
    if not 1 <= shops <= MOST_SHOPS:
        raise DataError(f"chain: expected 1 to {MOST_SHOPS} shops, got {shops}")
    rng = np.random.default_rng(seed)
    shop, theme = _fill_shops(shops), rng.integers(0, THEMES, ITEMS)
    weights = _draw_weights(shop, theme, rng)
    rows, columns = draw_pairs(weights, _draw_degrees(rng), rng)
    users, items = make_ids("user", USERS), make_ids("item", ITEMS)
    pairs = pl.DataFrame({"user": users.gather(rows), "item": items.gather(columns)})
    titles = describe_items(items, _draw_titles(theme, rng))
    dataset = assemble_dataset("chain", {WHOLE: pairs}, seed=seed, titles=titles, draws="table")
    return Chain(dataset, pl.DataFrame({"user": users, "shop": shop}))


def _fill_shops(shops: int) -> Int64:
    """(M,): the first shop's customers, then those of the next one."""
    shares = 1.0 / np.arange(1, shops + 1)
    ends = np.round(np.cumsum(shares / shares.sum()) * USERS)
    return np.searchsorted(ends, np.arange(USERS), side="right").astype(np.int64)


def _draw_weights(shop: Int64, theme: Int64, rng: np.random.Generator) -> Float64:
    """(M, N): taste times popularity; next to nothing for what the customer's shop has not in stock."""
    shops = int(shop.max()) + 1
    stressed = TASTE * rng.lognormal(0.0, REGION, (shops, THEMES))
    taste = rng.gamma(stressed[shop]) + np.finfo(np.float64).tiny
    taste /= taste.sum(axis=1, keepdims=True)
    popularity = (1.0 + rng.permutation(ITEMS)) ** -POPULARITY
    stocked = rng.random((shops, ITEMS)) < STOCK
    weights: Float64 = (taste[:, theme] + ASTRAY / THEMES) * popularity
    return np.where(stocked[shop], weights, np.finfo(np.float64).tiny)


def _draw_degrees(rng: np.random.Generator) -> Int64:
    """(M,): how much each customer buys, log-normal."""
    drawn = BOUGHT * rng.lognormal(-(SPREAD**2) / 2, SPREAD, USERS)
    return np.clip(np.round(drawn), FEWEST, MOST).astype(np.int64)


def _draw_titles(theme: Int64, rng: np.random.Generator) -> pl.Series:
    """Made-up titles: the first word and the last one tell the theme."""
    quality = pl.Series(QUALITIES).gather(theme // len(KINDS))
    genre = pl.Series(KINDS).gather(theme % len(KINDS))
    thing = pl.Series(THINGS).gather(rng.integers(0, len(THINGS), len(theme)))
    years = pl.Series(rng.integers(1950, 2025, len(theme))).cast(pl.String)
    return "The " + quality + " " + thing + " (" + years + ", " + genre + ")"
