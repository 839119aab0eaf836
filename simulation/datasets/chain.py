"""Generator of a chain of shops for demonstrations: own customers, mostly common items.

How the data are made. Every item belongs to one of 60 themes (a quality and a genre, which its title shows) and has a
popularity of its own, a power law, that is the same in all shops. Every customer has a taste: weights of the themes,
drawn from one Dirichlet law for the whole chain, in which each shop stresses some themes more than others. A customer
buys items in proportion to taste times popularity, and a few outside it. A shop has nine tenths of the catalogue in
stock, drawn at random. The second shop has half as many customers as the first one, the third a third, and so on.

The generator does not depend on any model. Pooling helps because of the one thing that the shops have in common: users
who like one item of a theme like the others, and a small shop has too few customers to show that for most items.

With a lone shop, the last and smallest one belongs to no chain: it sells items of its own, of the same themes, and no
other shop has any of them. Each shop also lists some new items without purchases.
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
REGION = 0.5  # standard deviation of the log weights that a shop's customers give themes
ASTRAY = 0.02  # share of a customer's weight that lies on all items alike
POPULARITY = 0.8  # exponent of the power law
STOCK = 0.9  # share of the catalogue that a shop has
BOUGHT, SPREAD = 20.0, 0.5  # items of a customer: mean, and standard deviation of the logarithm
FEWEST, MOST = 5, 100
MOST_SHOPS = 50  # the smallest then has five customers
LONE_ITEMS, LONE_USERS = 300, 60  # of the lone shop
NEW = 0.1  # share of new items, with a lone shop


@dataclass(frozen=True, eq=False)
class Chain:
    """Data of all shops together, and each customer's shop: user, shop (from 0).

    new: item, shop, of the items that a shop lists and no customer has bought; None if there are none.
    """

    dataset: Dataset
    shops: pl.DataFrame
    new: pl.DataFrame | None = None


def generate_chain(seed: int, shops: int, *, lone: bool = False) -> Chain:
    """Generates the shops of a chain.

    It is the same for the same seed and number of shops. lone: the last shop sells only items that the others do not
    sell, and each shop lists new items. Raises DataError for too many shops.
    """
    if not 1 + lone <= shops <= MOST_SHOPS:
        raise DataError(f"chain: expected {1 + lone} to {MOST_SHOPS} shops, got {shops}")
    rng = np.random.default_rng(seed)
    shop, count = _fill_shops(shops, lone=lone), ITEMS + LONE_ITEMS * lone
    theme = rng.integers(0, THEMES, count)
    weights, listed = _draw_weights(shop, theme, rng, lone=lone)
    new = rng.random(count) < NEW if lone else np.zeros(count, dtype=bool)
    weights[:, new] = 0.0
    with np.errstate(divide="ignore"):  # what has no weight is not drawn
        rows, columns = draw_pairs(weights, _draw_degrees(len(shop), rng), rng)
    users, items = make_ids("user", len(shop)), make_ids("item", count)
    pairs = pl.DataFrame({"user": users.gather(rows), "item": items.gather(columns)})
    titles = describe_items(items, _draw_titles(theme, rng))
    dataset = assemble_dataset("chain", {WHOLE: pairs}, seed=seed, titles=titles, draws="table")
    where, what = np.nonzero(listed & new)
    arrived = pl.DataFrame({"item": items.gather(what), "shop": where}) if lone else None
    return Chain(dataset, pl.DataFrame({"user": users, "shop": shop}), arrived)


def _fill_shops(shops: int, *, lone: bool) -> Int64:
    """Assigns each customer to a shop, (M,), in the order of the shops."""
    shares = 1.0 / np.arange(1, shops - lone + 1)
    ends = np.round(np.cumsum(shares / shares.sum()) * USERS)
    if lone:
        ends = np.append(ends, USERS + LONE_USERS)
    return np.searchsorted(ends, np.arange(int(ends[-1])), side="right").astype(np.int64)


def _draw_weights(
    shop: Int64, theme: Int64, rng: np.random.Generator, *, lone: bool
) -> tuple[Float64, NDArray[np.bool_]]:
    """Draws the purchase weights, taste times popularity, (M, N).

    They are next to nothing for items that the customer's shop has not in stock. Also returns each shop's stock,
    (shops, N).
    """
    shops = int(shop.max()) + 1
    stressed = TASTE * rng.lognormal(0.0, REGION, (shops, THEMES))
    taste = rng.gamma(stressed[shop]) + np.finfo(np.float64).tiny
    taste /= taste.sum(axis=1, keepdims=True)
    popularity = (1.0 + rng.permutation(len(theme))) ** -POPULARITY
    stocked = rng.random((shops, len(theme))) < STOCK
    if lone:
        stocked[:-1, ITEMS:], stocked[-1] = False, np.arange(len(theme)) >= ITEMS
    weights: Float64 = (taste[:, theme] + ASTRAY / THEMES) * popularity
    return np.where(stocked[shop], weights, np.finfo(np.float64).tiny), stocked


def _draw_degrees(users: int, rng: np.random.Generator) -> Int64:
    """Draws how many items each customer buys, log-normal, (M,)."""
    drawn = BOUGHT * rng.lognormal(-(SPREAD**2) / 2, SPREAD, users)
    return np.clip(np.round(drawn), FEWEST, MOST).astype(np.int64)


def _draw_titles(theme: Int64, rng: np.random.Generator) -> pl.Series:
    """Makes titles up; the first word and the last one give the theme."""
    quality = pl.Series(QUALITIES).gather(theme // len(KINDS))
    genre = pl.Series(KINDS).gather(theme % len(KINDS))
    thing = pl.Series(THINGS).gather(rng.integers(0, len(THINGS), len(theme)))
    years = pl.Series(rng.integers(1950, 2025, len(theme))).cast(pl.String)
    return "The " + quality + " " + thing + " (" + years + ", " + genre + ")"
