"""Reads the head of a shard, without its tables."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from client_service.data.files import current_file, read_bytes
from client_service.data.ratings import RatingScale
from shared.errors import DataError
from shared.message import Message

HEAD = "shard.json"
FIRST, LAST = -62_135_596_800, 253_402_300_799  # seconds of the years 1 and 9999: times that a shard holds
PAIRS: Literal["lpsfed-shard/1"] = "lpsfed-shard/1"  # user, item, split; items with titles
EVENTS: Literal["lpsfed-shard/2"] = "lpsfed-shard/2"  # times, ratings or features besides
MET_EVENTS: Literal["lpsfed-shard/3"] = "lpsfed-shard/3"  # besides, met events: interactions that are not positive
UNMET_ITEMS: Literal["lpsfed-shard/4"] = "lpsfed-shard/4"  # besides, unmet items: without any interaction


class ShardHead(Message):
    """Head of a shard: sizes, digests of its content, and notes on its clean-ups."""

    format: Literal["lpsfed-shard/1", "lpsfed-shard/2", "lpsfed-shard/3", "lpsfed-shard/4"]
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
    unmet: int | None = Field(default=None, ge=1)
    unmet_digest: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    rating: RatingScale | None = None
    notes: tuple[str, ...] = ()

    @property
    def lists_digest(self) -> str:
        """Digest, the same as `Shard.lists_digest`."""
        return combine_digests(self.digest, self.met_digest, self.unmet_digest)


def combine_digests(content: str, met: str | None, unmet: str | None) -> str:
    """Combines the digests of positives, met events and unmet items by sha256.

    Without met events and unmet items, the digest of the positives is returned unchanged.
    """
    for other in (met, unmet):
        content = content if other is None else hashlib.sha256(f"{content} {other}".encode()).hexdigest()
    return content


def load_head_if_present(folder: Path) -> ShardHead | None:
    """Reads the head of the shard in a folder; None for a missing one.

    DataError as from `read_shard_head`.
    """
    path = current_file(folder, HEAD)
    return read_shard_head(path) if path.exists() else None


def load_stated_digest(folder: Path) -> str | None:
    """Reads the digest in the head of a folder's shard; None without a head.

    DataError as from `read_shard_head`.
    """
    head = load_head_if_present(folder)
    return None if head is None else head.digest


def has_other_lists(folder: Path, lists_digest: str) -> bool:
    """Checks if the shard in a folder has a head with another `lists_digest`.

    DataError as from `read_shard_head`.
    """
    head = load_head_if_present(folder)
    return head is not None and head.lists_digest != lists_digest


def load_rating_scale(folder: Path) -> RatingScale | None:
    """Reads the meaning of ratings in the head of the shard in a folder.

    None without a head, or if the head does not state it. DataError as from `read_shard_head`.
    """
    head = load_head_if_present(folder)
    return None if head is None else head.rating


def read_head_fields(path: Path, formats: Collection[str], what: str) -> dict[str, Any]:
    """Reads the fields of the head of a shard of any task.

    what: the data that shards of these formats hold, for the message. DataError for a head of another format.
    """
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
    """Reads the head of a shard from a file.

    DataError for other content.
    """
    values = read_head_fields(path, (PAIRS, EVENTS, MET_EVENTS, UNMET_ITEMS), "interactions of users")
    try:
        return ShardHead.model_validate(values)
    except ValidationError as error:
        fields = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise DataError(f"{path}: {fields}") from None
