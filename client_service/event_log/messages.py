"""JSON messages by which applications post interactions, items and nodes.

They stay in the silo.
"""

from __future__ import annotations

import math
from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, AwareDatetime, Field, model_validator

from client_service.data.ids import LONGEST_ID, has_control_characters, require_usable_id
from client_service.data.shard_head import FIRST, LAST
from shared.message import Message

RECEIPT = "5c" * 16  # an example
ERASURE_WAITS = (
    "answers no longer know the user; the shard, its derived files and the model follow with the next refresh, after "
    "the current round"
)
ERASURE_FINAL = (
    "updates that other silos' models have taken in cannot be taken back; later updates have nothing of the user"
)


def _require_printable(text: str) -> str:
    if has_control_characters(text):
        raise ValueError("expected text without control characters, got some")
    return text


def _require_storable(time: datetime) -> datetime:
    """Checks that a time lies in the years 1 to 9999 of UTC.

    An offset may lead out of them.
    """
    if not FIRST <= seconds_of(time) <= LAST:
        raise ValueError("expected a time in the years 1 to 9999 of UTC, got one outside")
    return time


def seconds_of(time: datetime) -> int:
    """Returns whole seconds since 1970, UTC; fractions are cut off."""
    return math.floor(time.timestamp())


StoredId = Annotated[str, Field(min_length=1, max_length=LONGEST_ID), AfterValidator(require_usable_id)]
Word = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_require_printable)]
Text = Annotated[str, Field(max_length=2000), AfterValidator(_require_printable)]
Number = Annotated[float, Field(allow_inf_nan=False)]
StoredTime = Annotated[AwareDatetime, AfterValidator(_require_storable)]


class InteractionIn(Message):
    """Interaction of one user with one item."""

    event: Word = Field(
        description="id chosen by the caller; a repeated id changes nothing",
        examples=["order-812.1"],
    )
    user: StoredId = Field(description="id of the user", examples=["4711"])
    item: StoredId = Field(description="id of the item, in the catalogue or not", examples=["boots"])
    time: StoredTime | None = Field(
        None, description="time, ISO 8601 with an offset; by default now", examples=["2026-01-31T12:00:00Z"]
    )
    rating: Number | None = Field(
        None,
        description="rating on the silo's own scale; below its least rating the item is seen, not positive",
        examples=[5.0],
    )


class InteractionsIn(Message):
    """Batch of interactions; it is stored as a whole or not at all."""

    interactions: tuple[InteractionIn, ...] = Field(
        min_length=1, max_length=10_000, description="interactions, in any order"
    )


class InteractionsOut(Message):
    """Result of a batch of interactions."""

    accepted: int = Field(ge=0, description="number of interactions stored")
    repeated: int = Field(ge=0, description="number of interactions with a known event id", examples=[0])
    unknown_items: int = Field(
        ge=0, examples=[0], description="stored interactions with items outside the catalogue, which wait for it"
    )


class ItemIn(Message):
    """Metadata of an item; they replace what was posted before."""

    title: Text | None = Field(None, description="title, shown in lists and searched", examples=["Winter boots"])
    categories: tuple[Word, ...] = Field(
        (), max_length=100, description="categories, used by `filter=category:...`", examples=[["shoes"]]
    )
    attributes: dict[Word, Text | Number | bool] = Field(
        {},
        max_length=100,
        description="attributes, used by `filter=KEY:...`",
        examples=[{"colour": "black", "year": 1999}],
    )
    hidden: bool = Field(False, description="true: the item appears in no answer")


class ErasureOut(Message):
    """State of an erasure, without the id."""

    receipt: str = Field(
        pattern="^[0-9a-f]{32}$", description="receipt of the erasure, to ask for its state", examples=[RECEIPT]
    )
    asked_at: datetime = Field(description="when the user was erased from the answers, UTC")
    done_at: datetime | None = Field(
        description="when the last file of the silo with data of the user was removed, UTC"
    )
    remains: str = Field(description="remaining work, or what no erasure can undo", examples=[ERASURE_FINAL])


class ErasedOut(ErasureOut):
    """Result of erasing a user so far."""

    interactions: int = Field(ge=0, description="number of interactions erased from the log", examples=[3])


LARGEST_FEATURE, LARGEST_WEIGHT = 1e9, 1e6  # of a node's features, and of the weight of an edge
MOST_NODES, MOST_NODE_EDGES, MOST_NODE_FEATURES = 1000, 10_000, 1 << 16
MOST_EDGES = 20_000  # of all nodes of a request together
FeatureValue = Annotated[float, Field(allow_inf_nan=False, ge=-LARGEST_FEATURE, le=LARGEST_FEATURE)]
FeatureValues = (
    Annotated[dict[Word, FeatureValue], Field(max_length=MOST_NODE_FEATURES)]
    | Annotated[tuple[FeatureValue, ...], Field(max_length=MOST_NODE_FEATURES)]
)


def require_edge_limit(given: Any) -> Any:
    """Returns a request about nodes unchanged; raises ValueError for too many edges.

    It is called before anything else is checked.
    """
    nodes = given.get("nodes") if isinstance(given, dict) else None
    edges = [one.get("neighbours") for one in nodes if isinstance(one, dict)] if isinstance(nodes, list | tuple) else []
    if (count := sum(len(one) for one in edges if isinstance(one, list | tuple))) > MOST_EDGES:
        raise ValueError(f"expected at most {MOST_EDGES:,} neighbours of all nodes together, got {count:,}")
    return given


class EdgeIn(Message):
    """Edge of a posted node."""

    node: StoredId = Field(description="id of the neighbour, in the silo or not", examples=["worker-4"])
    weight: float = Field(
        1.0, ge=0, le=LARGEST_WEIGHT, allow_inf_nan=False, description="weight of the edge; 0: no edge"
    )


class NodeEventIn(Message):
    """Posted changes of a node; omitted fields stay as they were."""

    node: StoredId = Field(description="id of the node, in the silo or not", examples=["worker-17"])
    features: FeatureValues | None = Field(
        None,
        description="all of them, by their names, where what is not named is 0, or in the shard's order; a new node"
        " waits in the log until it has some",
        examples=[{"rejected_rate": 0.2}],
    )
    neighbours: tuple[EdgeIn, ...] = Field(
        (), max_length=MOST_NODE_EDGES, description="new or changed edges; others stay"
    )
    label: Text | None = Field(
        None, description="one of the silo's classes; an explicit null: unknown", examples=["banned"]
    )


class NodesIn(Message):
    """Batch of nodes; it is stored as a whole or not at all."""

    nodes: tuple[NodeEventIn, ...] = Field(
        min_length=1, max_length=MOST_NODES, description="nodes; of several with one id the last counts"
    )

    @model_validator(mode="before")
    @classmethod
    def _within_limits(cls, given: Any) -> Any:
        return require_edge_limit(given)


class NodesOut(Message):
    """Result of a batch of nodes."""

    accepted: int = Field(ge=0, description="number of nodes stored")
    waiting: int = Field(ge=0, examples=[0], description="stored new nodes without features, which wait for these")


class ErasedNodeOut(ErasureOut):
    """Result of erasing a node so far."""

    events: int = Field(ge=0, description="number of rows of the log with data of the node", examples=[1])
