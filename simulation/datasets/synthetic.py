"""Generator of a small data set with communities of different size and density.

It is for demonstrations and tests. It plants communities that clustering can find, genres inside them that a low-pass
filter can learn, and item popularity with a long tail, so that popularity alone is a poor guide.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from shared.errors import DataError
from shared.words import count_noun
from simulation.datasets.dataset import WHOLE, Dataset, assemble_dataset

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Community:
    """Shares of all users and items, and the mean number of items of a user.

    density: that number as a share of the community's items.
    """

    users: float
    items: float
    density: float


KINDS = ("adventure", "biography", "comedy", "crime", "drama", "fantasy", "history", "mystery", "satire", "western")
QUALITIES = ("Amber", "Borrowed", "Crooked", "Distant", "Empty", "Glass", "Hidden", "Northern", "Paper", "Quiet")
THINGS = ("Bridge", "Compass", "Garden", "Harbour", "Letter", "Map", "Orchard", "River", "Station", "Window")

COMMUNITIES = (
    Community(users=0.50, items=0.40, density=0.055),
    Community(users=0.25, items=0.30, density=0.10),
    Community(users=0.15, items=0.18, density=0.22),
    Community(users=0.10, items=0.12, density=0.16),
)
GENRES = len(KINDS)  # in each community
TASTE = 0.15  # Dirichlet parameter of a user's genres: small, so that a user likes one or two of them
ABROAD = 0.003  # weight of an item of another community, against 1 for a favourite one at home
POPULARITY = 0.8  # exponent of the power law
SPREAD = 0.5  # standard deviation of the logarithm of a user's number of items
FEWEST_ITEMS = 5  # of a user
USERS, USERS_OF_A_SILO = 2000, 20  # of data that a command makes, the larger number
SMALLEST, LARGEST = 50, 300_000_000  # least users and items; most user-item pairs, for each of which a number is drawn
BLOCK = 2_000_000  # pairs that are held in memory at a time


def generate_dataset(seed: int, *, users: int = USERS, items: int = 1200) -> Dataset:
    """Generates a data set, split 8:1:1, the same for the same seed.

    At the default size a user has about 30 interactions. Raises DataError for a size that cannot hold the communities,
    or too many pairs.
    """
    if min(users, items) < SMALLEST or users * items > LARGEST:
        expected = f"expected at least {SMALLEST} users and items and at most {LARGEST} pairs"
        raise DataError(f"generator: {expected}, got {count_noun(users, 'user')} and {count_noun(items, 'item')}")
    rng = np.random.default_rng(seed)
    user_community = _draw_communities([community.users for community in COMMUNITIES], users, rng)
    item_community = _draw_communities([community.items for community in COMMUNITIES], items, rng)
    genre = rng.integers(0, GENRES, items)
    taste = rng.dirichlet(np.full(GENRES, TASTE), users)  # (M, genres)
    popularity = _draw_popularity(item_community, rng)
    degree = _draw_degrees(user_community, item_community, rng)
    rows, columns = [], []
    for start in range(0, users, step := max(1, BLOCK // items)):
        block = slice(start, start + step)
        weight = affinity_of(user_community[block], taste[block], item_community, genre) * popularity
        found = draw_pairs(weight, degree[block], rng)
        rows.append(found[0] + start)
        columns.append(found[1])
    user_ids, item_ids = make_ids("user", users), make_ids("item", items)
    pairs = pl.DataFrame(
        {"user": user_ids.gather(np.concatenate(rows)), "item": item_ids.gather(np.concatenate(columns))}
    )
    titles = describe_items(item_ids, _draw_titles(genre, rng))
    return assemble_dataset("synthetic", {WHOLE: pairs}, seed=seed, titles=titles, draws="table")


def _draw_communities(shares: list[float], count: int, rng: np.random.Generator) -> Int64:
    """Draws the community of each node, (count,), in shuffled order.

    So an id says nothing about the community.
    """
    edges = np.round(np.cumsum(shares) * count).astype(np.int64)
    return rng.permutation(np.searchsorted(edges, np.arange(count), side="right"))


def affinity_of(users: Int64, taste: Float64, items: Int64, genre: Int64) -> Float64:
    """Computes the affinity of users for items, (M, N), by their communities.

    It is the taste for the item's genre within the user's community, and a small constant elsewhere. taste: (M,
    genres).
    """
    return np.where(users[:, None] == items[None, :], taste[:, genre] + ABROAD, ABROAD)


def _draw_popularity(items: Int64, rng: np.random.Generator) -> Float64:
    """Draws item popularity, (N,): a power law in each community, with mean 1."""
    order = np.lexsort((rng.random(len(items)), items))
    sizes = np.bincount(items)
    rank = np.empty(len(items))
    rank[order] = np.arange(len(items)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    weight = (1.0 + rank) ** -POPULARITY
    mean = np.bincount(items, weight) / sizes
    return weight / mean[items]


def _draw_degrees(users: Int64, items: Int64, rng: np.random.Generator) -> Int64:
    """Draws each user's number of items, (M,).

    Log-normal around each community's mean, at most half of its items.
    """
    sizes = np.bincount(items, minlength=len(COMMUNITIES))
    mean = np.array([community.density for community in COMMUNITIES]) * sizes
    noise = rng.lognormal(-(SPREAD**2) / 2, SPREAD, len(users))
    return np.clip(np.round(mean[users] * noise), FEWEST_ITEMS, sizes[users] // 2).astype(np.int64)


def draw_pairs(weight: Float64, degree: Int64, rng: np.random.Generator) -> tuple[Int64, Int64]:
    """Draws each user's items without replacement, in proportion to the weights.

    weight: (M, N). degree: (M,). Returns users and items, (E,) each. The items with the largest log-weight plus Gumbel
    noise are such a draw.
    """
    keys = np.log(weight) + rng.gumbel(size=weight.shape)
    order = np.argsort(-keys, axis=1)
    chosen = np.arange(weight.shape[1])[None, :] < degree[:, None]
    return np.nonzero(chosen)[0], order[chosen]


def make_ids(kind: str, count: int) -> pl.Series:
    """Makes the ids kind-00001, kind-00002, and so on."""
    numbers = pl.Series(np.arange(1, count + 1)).cast(pl.String)
    return pl.Series([f"{kind}-"]) + numbers.str.zfill(5)


def _draw_titles(genre: Int64, rng: np.random.Generator) -> pl.Series:
    """Makes titles up; the last word gives the genre, for a check by eye."""
    first, second = (pl.Series(words).gather(rng.integers(0, len(words), len(genre))) for words in (QUALITIES, THINGS))
    years = pl.Series(rng.integers(1950, 2025, len(genre))).cast(pl.String)
    return "The " + first + " " + second + " (" + years + ", " + pl.Series(KINDS).gather(genre) + ")"


def describe_items(items: pl.Series, titles: pl.Series) -> pl.DataFrame:
    """Makes a table of items with the category and year in their titles.

    Columns: item, title, category and year; a title ends with the year and the category.
    """
    told = titles.str.extract_groups(r"\((?<year>\d{4}), (?<category>\w+)\)$").struct
    year, category = told.field("year").cast(pl.Float64), told.field("category")
    return pl.DataFrame({"item": items, "title": titles, "category": category, "year": year})
