"""What a shard says about itself, without a look at its tables."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from client_service.data.files import current_file, read_bytes
from client_service.data.ratings import RatingMeaning
from shared.errors import DataError
from shared.message import Message

HEAD = "shard.json"
FIRST, LAST = -62_135_596_800, 253_402_300_799  # seconds of the years 1 and 9999: times that a shard holds
PAIRS: Literal["lpsfed-shard/1"] = "lpsfed-shard/1"  # user, item, split; items with titles
EVENTS: Literal["lpsfed-shard/2"] = "lpsfed-shard/2"  # times, ratings or features besides
MET_EVENTS: Literal["lpsfed-shard/3"] = "lpsfed-shard/3"  # items that their users have met and do not like besides


class ShardHead(Message):
    """What a shard says about itself: sizes, digests of its content, and the clean-ups it went through."""

    format: Literal["lpsfed-shard/1", "lpsfed-shard/2", "lpsfed-shard/3"]
    name: str = Field(min_length=1, max_length=200)
    users: int = Field(ge=1)
    items: int = Field(ge=1)
    train: int = Field(ge=1)
    valid: int = Field(ge=0)
    test: int = Field(ge=0)
    digest: str = Field(pattern=r"^[0-9a-f]{64}$")
    events_digest: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    met: int | None = Field(default=None, ge=1)
    met_digest: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    rating: RatingMeaning | None = None
    notes: tuple[str, ...] = ()

    @property
    def lists_digest(self) -> str:
        """As `Shard.lists_digest`."""
        return add_met_digest(self.digest, self.met_digest)


def add_met_digest(content: str, met: str | None) -> str:
    """sha256 over the digest of the likings and that of the met events; the first alone where nothing is met."""
    return content if met is None else hashlib.sha256(f"{content} {met}".encode()).hexdigest()


def stated_head(folder: Path) -> ShardHead | None:
    """The head of the shard in `folder`; None where there is none. DataError as from reading."""
    path = current_file(folder, HEAD)
    return read_shard_head(path) if path.exists() else None


def stated_digest(folder: Path) -> str | None:
    """The digest that the head of the shard in `folder` says; None where there is none. DataError as from reading."""
    head = stated_head(folder)
    return None if head is None else head.digest


def states_other_lists(folder: Path, lists_digest: str) -> bool:
    """Does the head of the shard in `folder` say another `lists_digest` than this? DataError as from reading."""
    head = stated_head(folder)
    return head is not None and head.lists_digest != lists_digest


def stated_rating(folder: Path) -> RatingMeaning | None:
    """What ratings mean, as the head of the shard in `folder` says; None where it does not. DataError likewise."""
    head = stated_head(folder)
    return None if head is None else head.rating


def read_head_of(path: Path, formats: Collection[str], what: str) -> dict[str, Any]:
    """The head of a shard of whatever task. what: the data that shards of these formats hold. DataError for another."""
    try:
        values = json.loads(read_bytes(path))
    except ValueError:
        raise DataError(f"{path}: expected JSON, got something else") from None
    version = values.get("format") if isinstance(values, dict) else type(values).__name__
    if not isinstance(values, dict) or version not in formats:
        expected = f"expected a shard of {what}, format {' or '.join(map(repr, formats))}"
        raise DataError(f"{path}: {expected}, got {str(version)[:40]!r}")
    return values


def read_shard_head(path: Path) -> ShardHead:
    """The head in this file. DataError for another content."""
    values = read_head_of(path, (PAIRS, EVENTS, MET_EVENTS), "interactions of users")
    try:
        return ShardHead.model_validate(values)
    except ValidationError as error:
        fields = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise DataError(f"{path}: {fields}") from None
