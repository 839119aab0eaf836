"""The JSON messages of what applications ask of a silo of sessions. They stay in the silo."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, model_validator

from client_service.serving.messages import Id
from client_service.serving.requests import DEEPEST, MOST_LISTED
from shared.message import Message

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
    """The items that somebody has clicked, in this order, or several such sessions."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"session": ["boots", "socks"], "k": 5}]})

    session: Session | None = Field(
        None, description="ids of items, the last click last, repeats and all", examples=[["boots", "socks", "boots"]]
    )
    sessions: tuple[Session, ...] | None = Field(None, min_length=1, max_length=MOST_SESSIONS, description=SEVERAL)
    k: int = Field(20, ge=1, le=DEEPEST, description="length of each list")
    exclude_seen: bool = Field(False, description="leave out the items of the session itself")
    exclude: tuple[Id, ...] = Field(
        (), max_length=100_000, description="none of these items; unknown ones change nothing"
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
        """What it takes of the MOST_LISTED that are computed together."""
        return len(self.all_sessions) * max(self.k, LEAST_WEIGHT)

    @property
    def all_sessions(self) -> tuple[tuple[str, ...], ...]:
        """The one session, or all of the batch."""
        return (self.session,) if self.session is not None else self.sessions or ()


class NextItemOut(Message):
    """One item of a list."""

    item: str = Field(description="the item's id", examples=["boots"])
    score: float = Field(description=NEXT_SCORE, examples=[0.04])
    title: str | None = Field(None, description="where one is known")


class NextOut(Message):
    """Most likely first. `fallback` says why these are counts of the silo's own instead of a model's answer."""

    model: str | None = Field(None, description="version of the model that answered")
    fallback: NextFallback | None = Field(None, description="why no model answered; not there where one did")
    unknown_items: int = Field(0, ge=0, description="clicks of the session on items that the catalogue does not hold")
    items: tuple[NextItemOut, ...] = Field(description="at most k; fewer where no more are allowed")


class NextListOut(Message):
    """A list for each session, in the order of the request."""

    results: tuple[NextOut, ...] = Field(description="a list each")
