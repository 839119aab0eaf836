"""State directories of revision 0009, from before runs were documents: they open, tell the same, and open runs go on.

`revision_9_*.sql` were written by that version, with the content of its files in a table `blob_files`; the `.json` is
what it answered of its runs. Deadlines are set to the year 2100.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from aggregator_service.rounds.run import EARLIER
from shared.method.parameters import Float32
from shared.protocol.signing.keys import private_pem

if TYPE_CHECKING:
    from conftest import Federation, Running

pytestmark = pytest.mark.anyio

HERE = Path(__file__).parent


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    """The aggregator's key of that time; the threshold of its secure run is bound to it."""
    file = tmp_path / "aggregator.pem"
    file.write_bytes(private_pem(Ed25519PrivateKey.from_private_bytes(hashlib.sha256(b"aggregator").digest())))
    file.chmod(0o600)
    return {"signing_key_file": file}


@pytest.fixture
def write_directory(tmp_path: Path) -> Callable[[str], Path]:
    def write(name: str) -> Path:
        state = tmp_path / "state"
        (state / "blobs").mkdir(parents=True)
        with closing(sqlite3.connect(state / "aggregator.sqlite")) as connection:
            connection.executescript((HERE / f"revision_9_{name}.sql").read_text(encoding="utf-8"))
            for blob, content in connection.execute("select name, content from blob_files").fetchall():
                (state / "blobs" / blob).write_bytes(content)
            connection.execute("drop table blob_files")
            connection.execute("pragma user_version = 2")
            connection.commit()
        return state / "aggregator.sqlite"

    return write


async def history(federation: Federation, run: int) -> dict[str, Any]:
    answer: dict[str, Any] = (await federation.operate("GET", f"/v1/runs/run-{run}")).json()
    return answer


async def test_the_history_of_finished_failed_and_open_runs_is_the_same(
    running: Running, write_directory: Callable[[str], Path], settings: dict[str, Any]
) -> None:
    file = write_directory("open")
    before = json.loads((HERE / "revision_9_open.json").read_text(encoding="utf-8"))
    async with running(**settings) as federation:
        after = [await history(federation, number) for number in (1, 2, 3)]
        for participant in (one for run in after for number in run["rounds"] for one in number["participants"]):
            sent, told = participant.pop("scalars"), participant.pop("told")  # written beside the fields of before
            assert (sent.get("rho"), told.get("rhobar")) == (participant["rho"], participant["rhobar"])
        assert [run.pop("deadline_at") for run in after][-1] == "2100-01-01T00:00:00+00:00"
        assert after == [{name: value for name, value in run.items() if name != "deadline_at"} for run in before]
        assert [run["phase"] for run in after] == ["finished", "failed", "open"]
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("pragma foreign_key_check").fetchall() == []


async def test_an_open_round_goes_on_with_its_receipts_quarantines_and_readmissions(
    running: Running,
    write_directory: Callable[[str], Path],
    settings: dict[str, Any],
    tensors: Callable[[bytes], dict[str, Float32]],
) -> None:
    write_directory("open")
    async with running(**settings) as federation:
        standings = {
            name: (await federation.client(name).get("/v1/runs/current")).json()["standing"]
            for name in ("north", "south", "west", "east", "late")
        }
        assert standings == {
            "north": "received",
            "south": "expected",
            "west": "quarantined",
            "east": "expected",
            "late": "expected",
        }
        east = federation.client("east")
        at = "/v1/runs/run-3/rounds/2/clients"
        refused = await east.get(f"{at}/east/personalized")
        assert refused.status_code == 409 and "quarantine was lifted" in refused.text
        for name, value in (("south", 5.0), ("east", 7.0), ("late", 9.0)):
            body = federation.client(name).update(value, rho=0.1, margin=0.5)
            assert (await federation.client(name).put_at(f"run-3/rounds/2/clients/{name}/update", body)).is_success
        mean = await federation.client("late").get(f"{at}/late/personalized", wait=5.0)
        assert all(np.isfinite(array).all() for array in tensors(mean.content).values())
        run = await history(federation, 3)
        assert (run["phase"], [one["phase"] for one in run["rounds"]]) == ("finished", ["aggregated", "aggregated"])
        assert [one["client"] for one in run["rounds"][1]["participants"] if one["quarantined"]] == ["west"]
        assert (await federation.start_run(rounds=1, clients=4)).json()["run"] == "run-4"


async def test_what_was_there_before_stays_beside_it(
    running: Running, write_directory: Callable[[str], Path], settings: dict[str, Any]
) -> None:
    file = write_directory("closed")
    with closing(sqlite3.connect(file)) as connection:
        before = list(connection.iterdump())
    for _ in range(2):  # the second time nothing is due
        async with running(**settings):
            pass
    (copy,) = file.parent.glob("*.before-*")
    assert copy.name == "aggregator.sqlite.before-0012"
    with closing(sqlite3.connect(copy)) as connection:  # whoever goes back puts it in place
        assert list(connection.iterdump()) == before
        assert connection.execute("pragma user_version").fetchone() == (2,)


async def test_a_closed_round_is_aggregated_at_the_start(
    running: Running, write_directory: Callable[[str], Path], settings: dict[str, Any]
) -> None:
    write_directory("closed")
    async with running(**settings) as federation:
        assert await federation.client("north").level(1) == 2.0
        assert (await history(federation, 1))["phase"] == "finished"


async def test_a_secure_round_of_an_earlier_protocol_has_failed_with_a_reason(
    running: Running, write_directory: Callable[[str], Path], settings: dict[str, Any]
) -> None:
    write_directory("secure")
    async with running(secure=True, **settings) as federation:
        told = await history(federation, 1)
        assert (told["phase"], told["reason"]) == ("failed", EARLIER)
        assert (await federation.start_run(rounds=1, clients=3)).json()["run"] == "run-2"
        assert (await federation.client("cyd").get("/v1/runs/current")).json()["run"] == "run-2"
