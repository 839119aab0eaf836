"""Digests of parts: the same however a body comes; a range is checked with the parts that it touches."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest

from aggregator_service.storage import body_parts
from aggregator_service.storage.body_parts import PART_BYTES, BodyRange, PartDigests
from aggregator_service.storage.disk import Blobs, Disk

BODY = random.Random(0).randbytes(3 * PART_BYTES + 100)


def parts_of(body: bytes, step: int) -> bytes:
    found = PartDigests()
    for begin in range(0, len(body), step):
        found.update(body[begin : begin + step])
    return found.finish()


@pytest.mark.parametrize("step", [997, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, len(BODY)])
def test_digests_of_parts_do_not_depend_on_the_pieces(step: int) -> None:
    wanted = [hashlib.sha256(BODY[at : at + PART_BYTES]).digest() for at in range(0, len(BODY), PART_BYTES)]
    assert parts_of(BODY, step) == b"".join(wanted)


@pytest.mark.parametrize("size", [0, 1, PART_BYTES, 2 * PART_BYTES])
def test_a_body_of_whole_parts_has_no_empty_one(size: int) -> None:
    assert len(parts_of(bytes(size), 1 << 20)) == body_parts.DIGEST_BYTES * -(-size // PART_BYTES)


def range_of(begin: int, end: int, parts: bytes | None = None) -> BodyRange:
    return BodyRange("", begin, end, len(BODY), parts_of(BODY, len(BODY)) if parts is None else parts)


EDGES = [0, 1, PART_BYTES - 1, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES, len(BODY) - 1, len(BODY)]


@pytest.mark.parametrize(("begin", "end"), [(begin, end) for begin in EDGES for end in EDGES if begin <= end])
def test_every_range_is_cut_from_its_parts(begin: int, end: int) -> None:
    wanted = range_of(begin, end)
    content = BODY[wanted.whole_begin : wanted.whole_end]
    found = wanted.cut(content)
    assert found is not None and bytes(found) == BODY[begin:end]
    for place in {0, len(content) // 2, len(content) - 1} if content else set[int]():
        changed = bytearray(content)
        changed[place] ^= 1
        assert wanted.cut(bytes(changed)) is None
    assert wanted.cut(content + b"x") is None
    if content:
        assert wanted.cut(content[:-1]) is None and wanted.cut(b"") is None


@pytest.mark.parametrize(("begin", "end"), [(-1, 5), (5, 4), (0, len(BODY) + 1), (len(BODY) + 1, len(BODY) + 2)])
def test_a_range_that_no_body_has_is_not_read(tmp_path: Path, begin: int, end: int) -> None:
    blobs = Blobs(tmp_path, Disk())
    wanted = BodyRange(blobs.save([BODY]).name, begin, end, len(BODY), parts_of(BODY, 1 << 20))
    assert blobs.read_ranges([wanted]) == [None]


@pytest.mark.parametrize("parts", [b"", parts_of(BODY, 1 << 20)[32:], bytes(128)])
def test_a_range_whose_digests_are_missing_or_others_is_not_read(parts: bytes) -> None:
    wanted = range_of(0, len(BODY), parts)
    assert wanted.cut(BODY) is None
