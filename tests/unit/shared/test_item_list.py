"""The list of items in an invitation: the same on both sides, or refused, at a bounded cost."""

from __future__ import annotations

import base64
import hashlib
import tracemalloc
import zlib
from pathlib import Path

import pytest

from client_service.data.digests import list_digest
from shared.errors import SettingsError
from shared.protocol.item_list import (
    LONGEST_LIST,
    LONGEST_PACKED,
    ItemListOut,
    pack_item_list,
    read_item_list,
    unpack_item_list,
)

ITEMS = ("10", "7", "Łódź, 2", "a b")


def test_a_silo_gets_the_list_that_the_operator_has_given(tmp_path: Path) -> None:
    file = tmp_path / "items.txt"
    file.write_text("\n".join(ITEMS) + "\n", encoding="utf-8")
    told = pack_item_list(read_item_list(file))
    assert unpack_item_list(ItemListOut.model_validate_json(told.model_dump_json())) == file.read_bytes()
    assert told.items == 4 and told.sha256 == list_digest(ITEMS)  # as silos compare it in a round


def packed(content: bytes, **changes: object) -> ItemListOut:
    given = {"sha256": hashlib.sha256(content).hexdigest(), "items": max(1, content.count(b"\n"))}
    return ItemListOut.model_validate(given | {"packed": base64.b64encode(zlib.compress(content)).decode()} | changes)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (packed(b"a\nb\n", sha256="0" * 64), "another one, or half of it"),
        (packed(b"a\nb\n", items=3), "with 3 items, got 2"),
        (packed(b"a\nb\n", packed="!"), "expected it as the operator has made it"),
        (packed(b"a\nb\n", packed=base64.b64encode(zlib.compress(b"a\nb\n")[:-3]).decode()), "half of it"),
        (packed(b"a\nb\n", packed=base64.b64encode(zlib.compress(b"a\nb\n") + b"more").decode()), "another one"),
        (packed(b"a\na\n"), "each id once, got 1 of them again"),
        (packed(b"a\r\nb\r\n"), "printable"),
        (packed(b"a" * 600 + b"\n"), "at most 512"),
        (packed(b"\xff\n"), "decode"),
        (packed(b""), "expected an id, got none"),
    ],
)
def test_a_list_that_was_changed_is_refused(told: ItemListOut, words: str) -> None:
    with pytest.raises(SettingsError, match=words) as caught:
        unpack_item_list(told)
    assert "ask the operator for a new invitation" in str(caught.value)


def test_a_list_that_unpacks_without_end_costs_no_more_than_the_longest_one() -> None:
    """A gigabyte of blanks takes a megabyte in an invitation."""
    squeezer, blank = zlib.compressobj(9), b" " * (1 << 24)
    content = b"".join(squeezer.compress(blank) for _ in range(64)) + squeezer.flush()
    bomb = ItemListOut(sha256="0" * 64, items=1, packed=base64.b64encode(content).decode())
    tracemalloc.start()
    try:
        with pytest.raises(SettingsError, match="another one, or half of it"):
            unpack_item_list(bomb)
        assert tracemalloc.get_traced_memory()[1] < 3 * LONGEST_LIST
    finally:
        tracemalloc.stop()


def test_what_no_invitation_has_room_for_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.protocol.item_list.LONGEST_PACKED", 20)
    with pytest.raises(SettingsError, match="give the silos the file"):
        pack_item_list([f"item-{number}" for number in range(50)])
    monkeypatch.setattr("shared.protocol.item_list.LONGEST_LIST", 9)
    file = tmp_path / "items.txt"
    file.write_text("0123456789\n")
    with pytest.raises(SettingsError, match="at most 9 bytes"):
        read_item_list(file)
    with pytest.raises(ValueError, match="packed"):
        ItemListOut(sha256="0" * 64, items=1, packed="a" * (LONGEST_PACKED + 1))
