"""What somebody typed into the boxes and the recommender -> a list of items, beside what it follows from."""

from __future__ import annotations

import re
from dataclasses import dataclass

from client_service.serving.messages import ItemOut, RecommendationsOut
from client_service.serving.questions import Limits
from client_service.serving.recommender import Recommender
from shared.errors import NotFoundError
from shared.words import count_noun

SHOWN, HISTORY = 10, 30
BETWEEN = re.compile(r"[,;\r\n]+")  # items of a basket; an id may have spaces in it


@dataclass(frozen=True)
class Question:
    """A user to recommend to, an item to find the like of, or a basket; none of them where nothing was asked."""

    user: str | None
    item: str | None
    k: int
    basket: str | None = None


@dataclass(frozen=True)
class Trial:
    """The answer. `note` says what is special about it, `heading` is None where nothing was asked.

    `history`: of a user, as much as the page holds; `beyond`: how many more items there are.
    """

    user: str
    k: int
    basket: str = ""
    heading: str | None = None
    note: str = ""
    warns: bool = False
    items: tuple[ItemOut, ...] = ()
    history: tuple[ItemOut, ...] | None = None
    beyond: int = 0


def trial(question: Question, recommender: Recommender) -> Trial:
    """Ask the recommender as its own API would; the page says so where the list is not personal."""
    if question.user:
        return _for_user(question.user, question.k, recommender)
    if question.basket:
        return _for_basket(question.basket, question.k, recommender)
    if question.item:
        return _similar_trial(question.item, question.k, recommender)
    return Trial(user="", k=question.k)


def _for_user(user: str, k: int, recommender: Recommender) -> Trial:
    found = recommender.for_user(user, Limits(k))
    history, count = recommender.history(user, HISTORY)
    return Trial(
        user=user,
        k=k,
        heading=f"For {user}",
        note=_describe(found),
        warns=found.fallback is not None,
        items=found.items,
        history=history,
        beyond=count - len(history),
    )


def _for_basket(basket: str, k: int, recommender: Recommender) -> Trial:
    items = tuple(filter(None, (one.strip() for one in BETWEEN.split(basket))))
    found = recommender.for_basket(items, Limits(k))
    unknown = f" {count_noun(found.unknown_items, 'item')} of it not in the catalogue." if found.unknown_items else ""
    return Trial(
        user="",
        k=k,
        basket=basket,
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
        model, items = recommender.similar(item, k)
    except NotFoundError:
        return Trial("", k, heading=f"Like {item}", note="This silo’s catalogue has no such item.", warns=True)
    note = "There is no model yet." if model is None else f"By the cosine of the embeddings of model {model}."
    return Trial("", k, heading=f"Like {item}", note=note, warns=model is None, items=items)
