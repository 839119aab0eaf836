"""List of items that a federation's silos share, as an invitation carries it.

A list is text: ids, one a line. Its sha256 is the one that `lpsfed catalogue` prints and that silos compare in a
round.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from pydantic import Field

from shared.errors import SettingsError
from shared.message import Message

LONGEST_LIST: Final = 64 << 20  # bytes of its text: a million ids of 64 characters
MOST_LISTED: Final = 1 << 21  # ids
LONGEST_PACKED: Final = 32 << 20  # characters that an invitation has for it
LONGEST_ID: Final = 512  # characters
LEVEL: Final = 9  # of compression, which is done once
_unprinted = re.compile(r"[\x00-\x1f\x7f]")


class ItemListOut(Message):
    """List of items in an invitation: compressed text with its sha256 and length."""

    sha256: str = Field(pattern="^[0-9a-f]{64}$", description="sha256 of the list's text", examples=["9f" * 32])
    items: int = Field(ge=1, le=MOST_LISTED, description="number of ids in the list", examples=[3706])
    packed: str = Field(
        max_length=LONGEST_PACKED, repr=False, description="text of the list, zlib in base64", examples=["eJw="]
    )


def read_item_list(path: Path) -> tuple[str, ...]:
    """Reads the ids of a list; raises SettingsError for another file or repeated ids."""
    expected = f"{path}: expected a list of items as `lpsfed catalogue` writes it"
    try:
        with path.open("rb") as file:
            content = file.read(LONGEST_LIST + 1)
    except OSError as error:
        raise SettingsError(f"{expected} ({error.strerror})") from None
    try:
        return _split_ids(content)
    except ValueError as error:
        raise SettingsError(f"{expected}: {error}") from None


def pack_item_list(ids: Sequence[str]) -> ItemListOut:
    """Packs a list for an invitation; raises SettingsError for one that is too long."""
    content = _list_content(ids)
    packed = base64.b64encode(zlib.compress(content, LEVEL)).decode()
    if len(packed) > LONGEST_PACKED:
        words = f"expected a list that fits an invitation, {LONGEST_PACKED:,} characters packed, got {len(packed):,}"
        raise SettingsError(f"catalogue: {words}: give the silos the file, and the aggregator catalogue_size_file")
    return ItemListOut(sha256=hashlib.sha256(content).hexdigest(), items=len(ids), packed=packed)


def unpack_item_list(packed_list: ItemListOut) -> bytes:
    """Unpacks the text of an invitation's list.

    Raises SettingsError if its sha256 or length differs. At most LONGEST_LIST bytes are unpacked, whatever the
    invitation holds.
    """
    expected = "the invitation's list of items: expected it as the operator has made it"
    try:
        unpacking = zlib.decompressobj()
        content = unpacking.decompress(base64.b64decode(packed_list.packed, validate=True), LONGEST_LIST + 1)
        whole = unpacking.eof and not unpacking.unused_data
        if not whole or hashlib.sha256(content).hexdigest() != packed_list.sha256:
            raise ValueError("got another one, or half of it")
        found = len(_split_ids(content))
    except (binascii.Error, zlib.error, ValueError) as error:
        raise SettingsError(f"{expected}, {error}; ask the operator for a new invitation") from None
    if found != packed_list.items:
        raise SettingsError(
            f"{expected}, with {packed_list.items} items, got {found}; ask the operator for a new invitation"
        )
    return content


def _split_ids(content: bytes) -> tuple[str, ...]:
    """Splits the text of a list into ids.

    Raises ValueError, without an id, for other text.
    """
    if len(content) > LONGEST_LIST:
        raise ValueError(f"expected at most {LONGEST_LIST:,} bytes, got more")
    if content.count(b"\n") > MOST_LISTED:
        raise ValueError(f"expected at most {MOST_LISTED:,} ids, got more")
    ids = [line for line in content.decode("utf-8").split("\n") if line]  # UnicodeDecodeError is a ValueError
    if not ids:
        raise ValueError("expected an id, got none")
    if len(set(ids)) < len(ids):
        raise ValueError(f"expected each id once, got {len(ids) - len(set(ids)):,} of them again")
    if any(len(one) > LONGEST_ID or _unprinted.search(one) for one in ids):
        raise ValueError(f"expected ids of at most {LONGEST_ID} printable characters, got others")
    return tuple(ids)


def _list_content(ids: Sequence[str]) -> bytes:
    return ("\n".join(ids) + "\n").encode()
