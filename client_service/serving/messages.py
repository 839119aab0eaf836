"""JSON messages of lists, next items, items and the model.

They stay in the silo.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, model_validator

from client_service.data.ids import normalise_id
from client_service.serving.ranking import DEEPEST, LONGEST_FILTER, MOST_FILTERS, MOST_LISTED, POOL
from shared.message import Message

Id = Annotated[str, Field(min_length=1, max_length=512, examples=["boots"]), AfterValidator(normalise_id)]
FilterText = Annotated[str, StringConstraints(max_length=LONGEST_FILTER)]
Version = Annotated[str, Field(examples=["run-1.5"])]
Fallback = Literal["unknown user", "no model yet", "no known item in the basket"]
FILTER = (
    "KEY:VALUE or KEY:VALUE|VALUE: items with one of these values of an attribute, or of the key `category`; of "
    "several filters all must hold; `\\` before a `:`, `|` or `\\` that belongs to one; "
    "no item has an unknown value, an unknown key is refused"
)
MOST_USERS, MOST_STREAMED = 1000, 100_000  # in one answer, and where each is a line of its own
USERS = (
    f"ids of users, each answered by a list; at most {MOST_USERS} and users x k at most {MOST_LISTED}, or with "
    f"`Accept: application/x-ndjson` {MOST_STREAMED}"
)
OFFSET = f"items of the list that come before the first answered one; offset + k at most {DEEPEST}"
EXCLUDE = "ids of items to leave out; unknown ids are ignored"
SCORE = (
    "relevance from 0 to 1: how likely the user takes the item next, as estimated on validation items, for a new item "
    "by its text alone; for popular items the share of the users who have it; with `raw` the model's own score, or how "
    "many users have the item"
)
RAW = "return the model's own score instead of the relevance"
MMR = (
    "weight of variety (maximal marginal relevance), by the cosine of the served model's item "
    "embeddings; 0: by score alone, 1: by variety alone; the best "
    f"{POOL} are reordered, and offset + k is at most {POOL}"
)
FRESHNESS = (
    "weight of novelty, by the time of an item's first interaction; 0: by score alone, 1: by time alone; the best "
    f"{POOL} are reordered, and offset + k is at most {POOL}; refused by a silo whose interactions have no times"
)
EXPLAIN = "return for each item the user's own items that contribute most to it"
NEW = (
    "places reserved for new items, which have no interaction and are scored by their texts alone: 1: the 10th place, "
    "2: the 5th and the 10th; in lists of 5 to 9 items the last ones, in shorter ones none; by default 1 in a silo "
    "that has new items with a text; each is marked by its `reason`; one whose text does not suit the user gets none"
)
ONLY = "`new`: a list of new items alone"
REASON = "`new`: the item has no interaction yet; its text resembles the user's items"
MOST_REASONS = 3  # of an item
BECAUSE = f"with `explain`: at most {MOST_REASONS} items of the user's own that contribute most, the largest first"
EXPLAINED = (
    "with `explain`: the closed-form part of the raw score, summed over all of the user's items; "
    "absent where the served model has none"
)
SEEN = "leave out the items that the user has interacted with, positive or not, or those of the basket"


class RecommendationsIn(Message):
    """Request for a batch of users, or for one basket."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"basket": ["boots", "hat"], "k": 5}]})

    users: tuple[Id, ...] | None = Field(
        None, min_length=1, max_length=MOST_STREAMED, description=USERS, examples=[["4711"]]
    )
    basket: tuple[Id, ...] | None = Field(
        None, min_length=1, max_length=10_000, description="ids of the items of a basket", examples=[["boots"]]
    )
    k: int = Field(20, ge=1, le=DEEPEST, description="length of each list")
    exclude_seen: bool = Field(True, description=SEEN)
    allow: tuple[Id, ...] | None = Field(
        None, max_length=100_000, description="only these items", examples=[["boots", "hat"]]
    )
    exclude: tuple[Id, ...] = Field((), max_length=100_000, description=EXCLUDE, examples=[["hat"]])
    filter: tuple[FilterText, ...] = Field(
        (), max_length=MOST_FILTERS, description=FILTER, examples=[["genre:Comedy|Drama", "category:film"]]
    )
    offset: int = Field(0, ge=0, lt=DEEPEST, description=OFFSET)
    mmr: float = Field(0.0, ge=0.0, le=1.0, description=MMR)
    freshness: float = Field(0.0, ge=0.0, le=1.0, description=FRESHNESS)
    explain: bool = Field(False, description=EXPLAIN)
    raw: bool = Field(False, description=RAW)
    new: int | None = Field(None, ge=0, le=2, description=NEW)
    only: Literal["new"] | None = Field(None, description=ONLY)

    @model_validator(mode="after")
    def _one_of_both(self) -> RecommendationsIn:
        if (self.users is None) == (self.basket is None):
            raise ValueError("expected either users or basket, got both or neither")
        return self


class ReasonOut(Message):
    """An item of the user's own that counts for a recommended one."""

    item: str = Field(description="an item that the user has, or of the basket", examples=["hat"])
    title: str | None = Field(None, description="title, if known", examples=["Woollen hat"])
    contribution: float = Field(gt=0, description="what it adds to `explained`", examples=[0.86])


class ItemOut(Message):
    """One item of a list."""

    item: str = Field(description="the item's id", examples=["boots"])
    score: float = Field(description=SCORE, examples=[0.062])
    title: str | None = Field(None, description="title, if known", examples=["Winter boots"])
    reason: Literal["new"] | None = Field(None, description=REASON)
    because: tuple[ReasonOut, ...] | None = Field(None, max_length=MOST_REASONS, description=BECAUSE)
    explained: float | None = Field(None, description=EXPLAINED)


class RecommendationsOut(Message):
    """List of recommended items, best first.

    `fallback` says why these are popular items instead of personal ones.
    """

    user: str | None = Field(None, description="user of the request; absent for a basket", examples=["4711"])
    model: Version | None = Field(None, description="version of the model that answered")
    fallback: Fallback | None = Field(None, description="reason for popular items; absent for a personal list")
    unknown_items: int = Field(0, ge=0, description="number of items of the request that are not in the catalogue")
    items: tuple[ItemOut, ...] = Field(description="at most k items; fewer where no more are allowed")


class BatchOut(Message):
    """List for each user in the order of the request, or one for the basket."""

    results: tuple[RecommendationsOut, ...] = Field(
        description="one list for each user or basket, in the order of the request"
    )


class SimilarOut(Message):
    """Items like an item, nearest first."""

    item: str = Field(description="item of the request", examples=["boots"])
    model: Version | None = Field(None, description="version of the model that answered; none while there is no model")
    reason: Literal["new"] | None = Field(
        None, description="`new`: the item has no interaction yet; these are the nearest by text"
    )
    items: tuple[ItemOut, ...] = Field(
        description="score: the cosine of both items' embeddings, or of their texts' features, in [-1, 1]"
    )


class CatalogueItemOut(Message):
    """Description of an item: from its shard, overridden by what applications posted."""

    item: str = Field(description="its id", examples=["boots"])
    title: str | None = Field(None, description="title, if known", examples=["Winter boots"])
    categories: tuple[str, ...] = Field((), description="what `filter=category:...` asks for", examples=[["shoes"]])
    attributes: dict[str, str | float | bool] = Field(
        {}, description="what `filter=KEY:...` asks for", examples=[{"colour": "black", "year": 1999}]
    )
    hidden: bool = Field(False, description="true: the item appears in no list")
    in_catalogue: bool = Field(
        True, description="the shard has it; another item can be recommended as a new one if it has a text"
    )


class NearItemOut(CatalogueItemOut):
    """Item that resembles the search without containing every searched word."""

    found_by: Literal["typing", "meaning"] = Field(
        description="`typing`: by words with one or two other letters, or without accents; `meaning`: by its features"
    )


class ItemsOut(Message):
    """Page of the catalogue in the order of the ids, without hidden items."""

    total: int = Field(ge=0, description="items on all pages that have all words")
    items: tuple[CatalogueItemOut, ...] = Field(description="at most k")
    near: tuple[NearItemOut, ...] | None = Field(
        None, description="similar items after the last match, best first; at most k with the matches"
    )


class ModelOut(Message):
    """The model that answers now."""

    version: Version | None = Field(None, description="as in each answer's `model`; none while there is no model")
    kept_at: str | None = Field(
        None, description="when it was written to the disk: UTC, ISO 8601", examples=["2026-01-31T12:00:00+00:00"]
    )
    run: str | None = Field(
        None, description="the run that trained it; none for one of the shard alone", examples=["run-1"]
    )
    round: int | None = Field(None, ge=0, description="the round of that run")
    users: int = Field(
        ge=0, description="number of users with a list of their own: those of the shard who were not erased"
    )
    items: int = Field(
        ge=0, description="number of items that can be recommended: those of the shard, without hidden ones"
    )
    score: str = Field(description="what the score of a recommended item means", examples=["relevance from 0 to 1"])


LONGEST_SESSION, MOST_SESSIONS = 200, 1000
LEAST_WEIGHT = MOST_LISTED // MOST_SESSIONS  # of a session: it is computed for all items, however few are listed
Session = Annotated[tuple[Id, ...], Field(min_length=1, max_length=LONGEST_SESSION)]
NextFallback = Literal["no model yet", "no known item in the session", "the model's scores are no numbers"]
SEVERAL = f"several sessions, each answered by a list; sessions x k is at most {MOST_LISTED}"
NEXT_SCORE = (
    "probability from 0 to 1 that the item is clicked next, as the model gives it; without a model the share of what "
    "followed the last click, and for a session without a known item the share of all clicks"
)


class NextIn(Message):
    """Clicked items of a session in order, or of several sessions."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"session": ["boots", "socks"], "k": 5}]})

    session: Session | None = Field(
        None, description="ids of clicked items in order, with repeats", examples=[["boots", "socks", "boots"]]
    )
    sessions: tuple[Session, ...] | None = Field(None, min_length=1, max_length=MOST_SESSIONS, description=SEVERAL)
    k: int = Field(20, ge=1, le=DEEPEST, description="length of each list")
    exclude_seen: bool = Field(False, description="leave out the items of the session itself")
    exclude: tuple[Id, ...] = Field(
        (), max_length=100_000, description="ids of items to leave out; unknown ids are ignored"
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> NextIn:
        if (self.session is None) == (self.sessions is None):
            raise ValueError("expected either session or sessions, got both or neither")
        if (listed := len(self.all_sessions) * self.k) > MOST_LISTED:
            raise ValueError(f"expected at most {MOST_LISTED} items in all lists together (sessions x k), got {listed}")
        return self

    @property
    def weight(self) -> int:
        """Number of list places that count against MOST_LISTED in a batch."""
        return len(self.all_sessions) * max(self.k, LEAST_WEIGHT)

    @property
    def all_sessions(self) -> tuple[tuple[str, ...], ...]:
        """The one session, or all of the batch."""
        return (self.session,) if self.session is not None else self.sessions or ()


class NextItemOut(Message):
    """One item of a list."""

    item: str = Field(description="the item's id", examples=["boots"])
    score: float = Field(description=NEXT_SCORE, examples=[0.04])
    title: str | None = Field(None, description="title, if known")


class NextOut(Message):
    """Next items, most likely first.

    `fallback` is the reason why these are counts of the silo instead of a model's answer.
    """

    model: str | None = Field(None, description="version of the model that answered")
    fallback: NextFallback | None = Field(None, description="reason why no model answered; absent where one did")
    unknown_items: int = Field(0, ge=0, description="number of clicks on items that are not in the catalogue")
    items: tuple[NextItemOut, ...] = Field(description="at most k items; fewer where no more are allowed")


class NextListOut(Message):
    """A list for each session, in the order of the request."""

    results: tuple[NextOut, ...] = Field(description="one list for each session, in the order of the request")
