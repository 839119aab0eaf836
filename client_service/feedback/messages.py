"""The JSON messages by which applications tell what users did and what items are. They stay in the silo."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime, Field

from shared.message import Message

UNPRINTED = re.compile(r"[\x00-\x1f\x7f]")


def _printed(text: str) -> str:
    if UNPRINTED.search(text):
        raise ValueError("expected text without control characters, got some")
    return text


StoredId = Annotated[str, Field(min_length=1, max_length=512), AfterValidator(_printed)]
Word = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_printed)]

Text = Annotated[str, Field(max_length=2000), AfterValidator(_printed)]


class InteractionIn(Message):
    """One user met one item."""

    event: Word = Field(description="an id of the caller's choosing: what comes again under it changes nothing")
    user: StoredId
    item: StoredId
    time: AwareDatetime | None = Field(None, description="ISO 8601 with an offset; by default now")
    rating: float | None = Field(
        None, allow_inf_nan=False, description="below the silo's least rating it is seen, not liked"
    )


class InteractionsIn(Message):
    """A batch; all of it is on the disk before it is answered, or nothing."""

    interactions: tuple[InteractionIn, ...] = Field(min_length=1, max_length=10_000)


class InteractionsOut(Message):
    """What became of a batch."""

    accepted: int
    repeated: int = Field(description="whose event id has come before")
    unknown_items: int = Field(description="accepted, of items outside the catalogue: they wait for it")


class ItemIn(Message):
    """What an application says of an item; it replaces what was said before."""

    title: Text | None = None
    categories: tuple[Word, ...] = Field((), max_length=100)
    attributes: dict[Word, Text | float | bool] = Field({}, max_length=100)
    hidden: bool = Field(False, description="it appears in no answer")


class ErasureOut(Message):
    """Where an erasure stands, without the id of whom it is about."""

    receipt: str = Field(pattern="^[0-9a-f]{32}$", description="by which it can be asked for again")
    asked_at: datetime
    done_at: datetime | None = Field(description="since when no file of the silo has anything of the user")
    remains: str = Field(description="what is left to do, or what no erasure can take back")


class ErasedOut(ErasureOut):
    """What erasing a user has done by now."""

    interactions: int = Field(description="erased from the log")
