"""Ten thousand bodies that are nearly an update: each is refused, unless it is one to the byte, and none does harm."""

from __future__ import annotations

import resource
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from aggregator_service.rounds import uploads
from aggregator_service.rounds.uploads import read_scalars
from shared.errors import ProtocolError
from shared.method.declaration import Declaration
from shared.method.parameters import Float32, Parameters
from shared.method.settings import MethodSettings
from shared.protocol.wire import decode_body, encode_body, find_scalars, require_content
from shared.strategies import build_strategy
from tests.support.malformed_uploads import Spoiler, split

if TYPE_CHECKING:
    from conftest import Running

pytestmark = pytest.mark.anyio
BODIES, SENT, SEED = 10_000, 160, 20
TRACED = 800  # tracing slows everything down
MOST_BYTES = 4 << 20  # at once, for bodies of at most a hundred kilobytes
GROWTH_KILOBYTES = 64 << 10
METHOD = MethodSettings(width=4, layers=1, margin_strength=1.0)
SCALARS = {"margin": 0.5, "rho": 0.25}


@pytest.fixture(scope="module")
def declaration() -> Declaration:
    return build_strategy("lpsfed", METHOD).declaration(METHOD)


@pytest.fixture(scope="module")
def valid(declaration: Declaration) -> bytes:
    rng = np.random.default_rng(SEED)
    arrays = {spec.name: rng.normal(size=spec.shape).astype(np.float32) for spec in declaration.tensors}
    return encode_body(Parameters(arrays, SCALARS))


def is_update(body: bytes, valid: bytes) -> bool:
    """Is it what a client writes? Found without the reader: the same header as the valid one's, and finite values."""
    start = len(valid) - len(split(valid)[1])
    if len(body) != len(valid) or body[:start] != valid[:start]:
        return False
    values: Float32 = np.frombuffer(body, dtype="<f4", offset=start)
    return bool(np.isfinite(values).all())


def is_canonical(body: bytes) -> bool:
    """The same where the scalars may be other numbers: what is read, written again, is the very body."""
    try:
        return encode_body(decode_body(body)[1]) == body
    except (ProtocolError, ValueError):  # it is not read; or it holds a number that is not finite, which is not written
        return False


def accepted(declaration: Declaration, body: bytes, file: Path) -> bool:
    """By the aggregator's reader. Any other error than a refusal is the test's failure."""
    file.unlink(missing_ok=True)  # a file that is cut and written anew waits for the disk
    file.write_bytes(body)
    try:
        read_scalars(declaration, file)
    except ProtocolError:
        return False
    return True


def test_the_reader_refuses_all_that_is_no_update(declaration: Declaration, valid: bytes, tmp_path: Path) -> None:
    before, taken = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, Counter[str]()
    for way, body in Spoiler(valid, SEED).bodies(BODIES):
        if accepted(declaration, body, tmp_path / "body"):
            assert is_canonical(body), (way, body[:200])
            taken[way] += 1
        else:
            assert not is_update(body, valid), (way, body[:200])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < GROWTH_KILOBYTES
    assert accepted(declaration, valid, tmp_path / "body") and 300 < taken["data flips"] < BODIES / 16


def test_what_is_found_at_once_is_what_all_checks_accept(
    declaration: Declaration, valid: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, found = tmp_path / "body", Counter[bool]()
    monkeypatch.setattr(uploads, "find_scalars", lambda *_: None)
    for way, body in [("valid", valid), *Spoiler(valid, SEED + 4).bodies(BODIES // 5)]:
        taken = accepted(declaration, body, file)
        assert (find_scalars(file, declaration) is not None) == taken, (way, body[:200])
        found[taken] += 1
    assert found[True] > 30


def test_the_clients_reader_does_so_too(declaration: Declaration, valid: bytes) -> None:
    """It reads what the aggregator answers, which it does not believe either; it minds no other form of the same."""
    for way, body in Spoiler(valid, SEED + 1).bodies(BODIES // 4):
        try:
            specification, content = decode_body(body)
            require_content(declaration, specification, content)
        except ProtocolError:
            assert not is_update(body, valid), (way, body[:200])


def test_no_body_makes_the_readers_take_much_memory(declaration: Declaration, valid: bytes, tmp_path: Path) -> None:
    bodies = list(Spoiler(valid, SEED + 2).bodies(TRACED))
    accepted(declaration, valid, tmp_path / "body")  # what is imported and kept at the first use is not the body's
    tracemalloc.start()
    try:
        for way, body in bodies:
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            accepted(declaration, body, tmp_path / "body")
            assert tracemalloc.get_traced_memory()[1] - before < MOST_BYTES, (way, body[:200])
    finally:
        tracemalloc.stop()


async def test_the_service_refuses_them_and_keeps_nothing_of_them(running: Running, valid: bytes) -> None:
    async with running(method=METHOD, quarantine_refusals=0) as federation:  # else the sixth would not be read
        client, _ = await federation.opened()
        for way, body in Spoiler(valid, SEED + 3).bodies(SENT):
            if is_canonical(body):  # a flip has made other values of its values, which may be anybody's
                continue
            answer = await client.put(1, body)
            assert 400 <= answer.status_code < 500, (way, answer.status_code, body[:200])
            assert answer.headers["content-type"] == "application/problem+json"
        blobs = federation.settings.state_directory / "blobs"
        assert list(blobs.iterdir()) == []
        assert (await federation.history())["rounds"][0]["missing"] == ["north", "south"]
        assert (await client.put(1, valid)).status_code == 201
        assert [path.read_bytes() for path in blobs.iterdir()] == [valid]
