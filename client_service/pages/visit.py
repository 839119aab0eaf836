"""What somebody typed as a visit, and who answers -> the items that are likely clicked next."""

from __future__ import annotations

from client_service.pages.trial import BETWEEN, Question, Trial
from client_service.serving.next_items import NextItems
from client_service.serving.next_messages import LONGEST_SESSION, NextIn


def try_visit(question: Question, answers: NextItems) -> Trial:
    """Ask as the API would; the page says so where no model answered."""
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
