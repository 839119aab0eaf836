"""What somebody typed into the box and the recommender -> a list of items to look at."""

from __future__ import annotations

from dataclasses import dataclass

from client_service.serving.messages import ItemOut
from client_service.serving.questions import Limits
from client_service.serving.recommender import Recommender
from shared.errors import NotFoundError

SHOWN = 10


@dataclass(frozen=True)
class Question:
    """A user to recommend to, or an item to find the like of; neither where nothing was asked."""

    user: str | None
    item: str | None
    k: int


@dataclass(frozen=True)
class Trial:
    """The answer. `note` says what is special about it, `heading` is None where nothing was asked."""

    user: str
    k: int
    heading: str | None = None
    note: str = ""
    warns: bool = False
    items: tuple[ItemOut, ...] = ()


def trial(question: Question, recommender: Recommender) -> Trial:
    """Ask the recommender as its own API would; the page says so where the list is not personal."""
    if question.user:
        return _for_user(question.user, question.k, recommender)
    if question.item:
        return _similar_trial(question.item, question.k, recommender)
    return Trial(user="", k=question.k)


def _for_user(user: str, k: int, recommender: Recommender) -> Trial:
    found = recommender.for_user(user, Limits(k))
    note = f"Answered by model {found.model}."
    if found.fallback is not None:
        note = f"Not personal, but the most popular items: {found.fallback}."
    return Trial(user, k, f"For {user}", note, found.fallback is not None, found.items)


def _similar_trial(item: str, k: int, recommender: Recommender) -> Trial:
    try:
        model, items = recommender.similar(item, k)
    except NotFoundError:
        return Trial("", k, f"Like {item}", "This silo’s catalogue has no such item.", True)
    note = "There is no model yet." if model is None else f"By the cosine of the embeddings of model {model}."
    return Trial("", k, f"Like {item}", note, model is None, items)
