"""Texts of a task on the silo's page, and answers to requests typed there."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from client_service.serving.messages import LONGEST_SESSION, ItemOut, NextIn, NextItemOut, RecommendationsOut
from client_service.serving.next_items import NextItems
from client_service.serving.node_labels import NodeLabels
from client_service.serving.node_messages import LabelOut, LabelsIn
from client_service.serving.ranking import ListRequest
from client_service.serving.recommender import Recommender
from shared.errors import NotFoundError, ProtocolError
from shared.words import count_noun


class Nouns(NamedTuple):
    """Nouns of a task on the page.

    owner: whose data a shard is of. event: one that training counts. judged: those over which a measure is a mean.
    thing: the other kind that a shard counts. popular: the answer without a model. ask: heading of the form where one
    may ask.
    """

    owner: str
    event: str
    judged: str
    thing: str = "item"
    popular: str = "popular items"
    ask: str = "Try a recommendation"


USERS = Nouns("user", "training interaction", "user")
VISITS = Nouns("session", "training click", "click")
NODES = Nouns("node", "edge", "labelled node", "feature", "frequencies of classes", "Try a label")


SHOWN, HISTORY = 10, 30
BETWEEN = re.compile(r"[,;\r\n]+")  # items of a basket; an id may have spaces in it


@dataclass(frozen=True)
class Question:
    """Request typed on the page: a user, an item, or a basket.

    All are empty at first. filter: KEY:VALUE, as in the API; for a user and for a basket.
    """

    user: str | None
    item: str | None
    k: int
    basket: str | None = None
    filter: str | None = None


@dataclass(frozen=True)
class Trial:
    """Answer to a request typed on the page.

    note: what is special about the answer. heading: None without a request. form: kind of the request: lists of
    users, baskets and items, the next item of a visit, or the label of a node. history: of a user, as much as the
    page shows. beyond: number of further items. label: of a node.
    """

    user: str
    k: int
    basket: str = ""
    filter: str = ""
    form: Literal["lists", "visit", "node"] = "lists"
    heading: str | None = None
    note: str = ""
    warns: bool = False
    items: tuple[ItemOut | NextItemOut, ...] = ()
    history: tuple[ItemOut, ...] | None = None
    beyond: int = 0
    label: LabelOut | None = None

    @property
    def explained(self) -> bool:
        """Whether any item has a reason; a model without a closed form gives none."""
        return any(isinstance(one, ItemOut) and one.because for one in self.items)


def trial(question: Question, recommender: Recommender) -> Trial:
    """Answers a request as the API would.

    The page tells when the list is not personal.
    """
    if question.user or question.basket:
        return _list_trial(question, recommender)
    if question.item:
        return _similar_trial(question.item, question.k, recommender)
    return Trial(user="", k=question.k)


def _list_trial(question: Question, recommender: Recommender) -> Trial:
    """Answers with a list and its reasons, or with the filter's error."""
    asked = Trial(question.user or "", question.k, question.basket or "", question.filter or "")
    try:
        limits = recommender.limits(question.k, filters=(asked.filter,) if asked.filter else (), explain=True)
    except ProtocolError as error:
        return replace(asked, heading="No list", note=f"{error}.", warns=True)
    return _for_user(asked, limits, recommender) if asked.user else _for_basket(asked, limits, recommender)


def _for_user(asked: Trial, limits: ListRequest, recommender: Recommender) -> Trial:
    user = asked.user
    found = recommender.for_user(user, limits)
    history, count = recommender.history(user, HISTORY)
    return replace(
        asked,
        heading=f"For {user}",
        note=_describe(found),
        warns=found.fallback is not None,
        items=found.items,
        history=history,
        beyond=count - len(history),
    )


def _for_basket(asked: Trial, limits: ListRequest, recommender: Recommender) -> Trial:
    items = tuple(item for one in BETWEEN.split(asked.basket) if (item := one.strip()))
    found = recommender.for_basket(items, limits)
    unknown = f" {count_noun(found.unknown_items, 'item')} of it not in the catalogue." if found.unknown_items else ""
    return replace(
        asked,
        heading=f"For a basket of {count_noun(len(items), 'item')}",
        note=_describe(found) + unknown,
        warns=found.fallback is not None,
        items=found.items,
    )


def _describe(found: RecommendationsOut) -> str:
    if found.fallback is not None:
        return f"Not personal, but the most popular items: {found.fallback}."
    return f"Answered by model {found.model}."


def _similar_trial(item: str, k: int, recommender: Recommender) -> Trial:
    try:
        found = recommender.similar(item, k)
    except NotFoundError:
        return Trial("", k, heading=f"Like {item}", note="This silo’s catalogue has no such item.", warns=True)
    note = f"By the cosine of the embeddings of model {found.model}."
    if found.reason is not None:
        note = "Nobody has this item yet: these are nearest by title, categories and attributes."
    elif found.model is None:
        note = "There is no model yet."
    return Trial("", k, heading=f"Like {item}", note=note, warns=found.model is None, items=found.items)


def try_visit(question: Question, answers: NextItems) -> Trial:
    """Answers a visit as the API would; the page tells when no model answered."""
    asked = question.basket or ""
    clicked = tuple(item for one in BETWEEN.split(asked) if (item := one.strip()))[-LONGEST_SESSION:]
    if not clicked:
        return Trial(user="", k=question.k, form="visit")
    found = answers.answer(NextIn(session=clicked, k=question.k)).results[0]
    note = f"Answered by model {found.model}." if found.fallback is None else f"By counts alone: {found.fallback}."
    unknown = f" {found.unknown_items} of the clicks on items that are not in the catalogue." * bool(
        found.unknown_items
    )
    return Trial(
        user="",
        k=question.k,
        basket=", ".join(clicked),
        form="visit",
        heading=f"After {answers.title_or_id(clicked[-1])}",
        note=note + unknown,
        warns=found.fallback is not None,
        items=found.items,
    )


def try_node(question: Question, answers: NodeLabels) -> Trial:
    """Asks for a node's label as the API would.

    The page says where no model has answered.
    """
    asked = Trial(user=question.user or "", k=question.k, form="node")
    if not question.user:
        return asked
    try:
        found = answers.answer(LabelsIn(nodes=(question.user,)))
    except NotFoundError:
        return replace(asked, heading=f"Label of {question.user}", note="This silo has no such node.", warns=True)
    [label] = found.results
    how = "" if found.joining is None else f", {found.joining.answers}"
    note = f"Answered by model {found.model}{how}."
    if label.fallback is not None:
        note = f"The served model has not answered: {label.fallback}."
    warns = label.fallback is not None
    return replace(asked, heading=f"Label of {question.user}", note=note, warns=warns, label=label)
