"""A secure round over restarts of the aggregator, and what its disk, log and metrics never hold."""

from __future__ import annotations

import json
import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from shared.protocol.secure import fixed_point
from shared.protocol.secure.fixed_point import STEP
from shared.protocol.wire import decode_body, encode_body

if TYPE_CHECKING:
    from conftest import Running, Secured, SecureFederation

pytestmark = pytest.mark.anyio
PHASES = ("keys", "shares", "checks", "masked", "consents", "answers")


async def test_a_restart_between_any_two_messages_goes_on_where_it_was(secured: Secured, running: Running) -> None:
    async with secured(3) as made:
        await made.phase("keys", "ada")
    order = [(phase, name) for phase in PHASES for name in made.clients]
    for first in range(0, len(order), 2):  # so that every phase is cut, and every gap between two
        async with running(secure=True) as federation:
            for phase, name in order[first : first + 2]:
                await made.again(federation).phase(phase, name)
    async with running(secure=True) as federation:
        made = made.again(federation)
        answer = await made.clients["bob"].fake.personalised(1)
        for name, value in made.mean(*made.clients).items():
            np.testing.assert_allclose(decode_body(answer.content)[1].arrays[name], value, rtol=2.0**-22, atol=STEP)


async def test_a_restart_keeps_the_phase_s_deadline_and_who_is_out(secured: Secured, running: Running) -> None:
    async with secured(4, quorum=3) as made:
        await made.phase("keys", "ada", "bob", "cyd")
        await made.late()
        before = (await made.federation.history())["deadline_at"]
    async with running(secure=True) as federation:
        made = made.again(federation)
        assert (await federation.history())["deadline_at"] == before
        assert [await one.standing() for one in made.clients.values()] == ["expected"] * 3 + ["absent"]


async def test_messages_and_masked_vectors_are_gone_once_the_mean_is_stored(secured: Secured) -> None:
    async with secured(3) as made:
        for phase in PHASES:
            await made.phase(phase)
        await made.clients["ada"].fake.personalised(1)
        state = made.federation.settings.state_directory
        with closing(sqlite3.connect(state / "aggregator.sqlite")) as database:
            assert database.execute("select count(*) from secure_messages").fetchone() == (0,)
            [(document,)] = database.execute("select document from runs").fetchall()
            assert json.loads(document)["run"]["exchange"] is None


def forms(values: np.ndarray[Any, Any]) -> list[bytes]:
    """Every way in which numbers of an update could lie on a disk."""
    ring = fixed_point.encode(values, "sought")
    return [
        values.astype("<f4").tobytes(),
        values.astype("<f8").tobytes(),
        values.astype(">f4").tobytes(),
        values.astype(">f8").tobytes(),
        ring.astype("<u8").tobytes(),
        ring.astype(">u8").tobytes(),
        json.dumps(values.astype(float).tolist())[1:-1].encode(),
        json.dumps(ring.tolist())[1:-1].encode(),
    ]


def sought(made: SecureFederation) -> dict[str, list[bytes]]:
    """Each client's margin and every row of every tensor of it."""
    rows: dict[str, list[bytes]] = {}
    for name, one in made.clients.items():
        parts = [row for value in one.content.arrays.values() for row in np.atleast_2d(value) if row.size > 1]
        found = [form for row in parts for form in forms(row)]
        margin = one.content.scalars["margin"]
        rows[name] = [*found, repr(margin).encode(), np.float64(margin).tobytes()]
    return rows


class Disk:
    """All that has ever lain on a disk: the contents of each file, but those of which a later one is a continuation."""

    def __init__(self, state: Path) -> None:
        self.state, self.contents = state, dict[str, list[bytes]]()

    def look(self) -> None:
        for path in self.state.rglob("*"):
            if path.is_file():
                earlier, content = self.contents.setdefault(str(path), []), path.read_bytes()
                if earlier and content.startswith(earlier[-1]):
                    earlier.pop()  # whatever stands in it stands in the new one
                earlier.append(content)


async def test_neither_disk_nor_log_nor_metrics_ever_hold_a_single_update(
    secured: Secured, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with secured(4, quorum=3) as made:
        disk, wanted = Disk(made.federation.settings.state_directory), sought(made)
        opened = encode_body(made.clients["ada"].content)  # as it would lie there in the open mode
        assert {name for name, parts in wanted.items() if any(part in opened for part in parts)} == {"ada"}
        for phase in PHASES:
            here = list(made.clients) if phase in ("keys", "shares", "checks") else ["ada", "bob", "cyd"]
            for name in here:
                await made.phase(phase, name)
                disk.look()
            if phase == "masked":
                await made.late()
        await made.clients["ada"].fake.personalised(1)
        metrics = made.federation.app.state.coordinator.metrics.text()
    disk.look()
    seen = disk.contents | {"metrics": [metrics], "log": [caplog.text.encode()]}
    found = [
        (client, where)
        for where, contents in seen.items()
        for content in contents
        for client, parts in wanted.items()
        if any(part in content for part in parts)
    ]
    assert found == []
    assert all(any(kind in where for where in seen) for kind in (".safetensors", "sqlite-wal", "log"))
