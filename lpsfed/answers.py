"""Answers of a silo as values. Fields that a later version adds are ignored."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True)
class Reason:
    """Item of the user that counts for a recommended one.

    contribution: what it adds to `explained`.
    """

    item: str
    contribution: float
    title: str | None = None


@dataclass(frozen=True)
class RecommendedItem:
    """Item of a list.

    score: relevance in [0, 1], or with `raw` the score by which the model ranks; the cosine in a list of similar items.
    reason: "new" for an item that nobody has yet, which has a reserved place. because, explained: with `explain`, where
    the served model has a closed-form part.
    """

    item: str
    score: float
    title: str | None = None
    reason: str | None = None
    because: tuple[Reason, ...] = ()
    explained: float | None = None


@dataclass(frozen=True)
class Recommendations:
    """List of recommended items, best first.

    fallback: why these are popular items; None for a personal list.
    """

    items: tuple[RecommendedItem, ...]
    user: str | None = None
    model: str | None = None
    fallback: str | None = None
    unknown_items: int = 0


@dataclass(frozen=True)
class SimilarItems:
    """Items like an item, nearest first.

    reason: "new" for items nearest by text to one that nobody has yet.
    """

    item: str
    items: tuple[RecommendedItem, ...]
    model: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class CatalogueItem:
    """Title, categories and attributes of an item."""

    item: str
    title: str | None = None
    categories: tuple[str, ...] = ()
    attributes: dict[str, bool | float | str] = field(default_factory=dict)
    hidden: bool = False
    in_catalogue: bool = True


@dataclass(frozen=True)
class NearItem(CatalogueItem):
    """Item that resembles those searched for.

    found_by: "typing" or "meaning".
    """

    found_by: str = ""


@dataclass(frozen=True)
class CataloguePage:
    """Page of the catalogue, by id.

    total: items on all pages. near: after the last, others that resemble them.
    """

    total: int
    items: tuple[CatalogueItem, ...]
    near: tuple[NearItem, ...] = ()


@dataclass(frozen=True)
class ServedModel:
    """Model that answers now.

    users: number of users with a list of their own. items: number of items that can be recommended.
    """

    users: int
    items: int
    score: str
    version: str | None = None
    kept_at: str | None = None
    run: str | None = None
    round: int | None = None


@dataclass(frozen=True)
class KeptModel:
    """Model that the silo keeps.

    values: its measures on validation data. served: it answers now. present_shard: False for one of the shard before
    a refresh; chosen, it is taken over under another version.
    """

    version: str
    run: str
    round: int
    served: bool
    values: dict[str, float]
    present_shard: bool = True


@dataclass(frozen=True)
class ShardRefresh:
    """State of the refresh of shard and model, and result of the last one.

    phase: idle, waiting or working. number: number of the newest request for a refresh. last_ended: number of the last
    refresh that has ended, done or with a problem; the following fields describe it. changed: whether it changed the
    shard. seconds: duration, with its waiting. erasures: number of erasures that it completed. waiting: number of
    interactions with items that the federation's catalogue lacks so far. dropped: number of the oldest of those, for
    which there was no room. problem: why it failed; it is tried again.
    """

    phase: str
    number: int | None = None
    last_ended: int | None = None
    asked_at: datetime | None = None
    ended_at: datetime | None = None
    seconds: float | None = None
    changed: bool | None = None
    model: str | None = None
    erasures: int | None = None
    waiting: int | None = None
    dropped: int | None = None
    problem: str | None = None


@dataclass(frozen=True)
class SentInteractions:
    """Counts of sent interactions.

    repeated: interactions whose event came before. unknown_items: accepted interactions with items that the shard does
    not have yet.
    """

    accepted: int = 0
    repeated: int = 0
    unknown_items: int = 0

    def __add__(self, other: SentInteractions) -> SentInteractions:
        return SentInteractions(
            self.accepted + other.accepted, self.repeated + other.repeated, self.unknown_items + other.unknown_items
        )


@dataclass(frozen=True)
class NeighbourContribution:
    """Neighbour that counts for a label.

    contribution: what it adds to the score of the label, before calibration.
    """

    node: str
    weight: float
    contribution: float


@dataclass(frozen=True)
class LabelledNode:
    """Most likely label of a node, with calibrated probabilities of all classes.

    known_label: label that the silo has of the node. neighbours: those that count most. unknown_neighbours: number of
    neighbours in the question that the silo does not have. fallback: why these are shares of the training labels; None
    if a model answered.
    """

    label: str
    probability: float
    probabilities: dict[str, float]
    node: str | None = None
    known_label: str | None = None
    fallback: str | None = None
    unknown_neighbours: int = 0
    neighbours: tuple[NeighbourContribution, ...] = ()


@dataclass(frozen=True)
class JoiningGain:
    """Measure on the silo's own validation nodes, alone and as served.

    alone: measure of the silo's own closed form. served: measure of the model that answers. answers: description of
    that model, and the reason for it.
    """

    measure: str
    nodes: int
    alone: float
    served: float
    answers: str


@dataclass(frozen=True)
class LabelledNodes:
    """Labels of the nodes of a question, in its order.

    joining: what joining has added, where there is a model.
    """

    results: tuple[LabelledNode, ...]
    model: str | None = None
    joining: JoiningGain | None = None


@dataclass(frozen=True)
class SentNodes:
    """Counts of sent nodes.

    waiting: new nodes without features, which wait for them.
    """

    accepted: int = 0
    waiting: int = 0

    def __add__(self, other: SentNodes) -> SentNodes:
        """Adds up two answers."""
        return SentNodes(self.accepted + other.accepted, self.waiting + other.waiting)


@dataclass(frozen=True)
class Erasure:
    """State of the erasure of a user or a node.

    done_at: time since when no file of the silo has anything of it; None before. remains: work that is left, or traces
    that no erasure can take back. interactions, events: numbers of erased interactions and events, in answers of
    `erase_user` and `erase_node`; None in answers of `read_erasure`.
    """

    receipt: str
    asked_at: datetime
    remains: str
    done_at: datetime | None = None
    interactions: int | None = None
    events: int | None = None
