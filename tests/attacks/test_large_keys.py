"""A message of a secure round is no longer than an honest one can be, and no more of it is read.

Who: a registered client. Before, only an update had a limit: 1.5 GB sent to `keys` took the aggregator from 141 to
1,635 MiB, all of it read into memory before it was found to be no key.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.attacks.besieged import MOST_MEBIBYTES, Besieged

MESSAGES = ("keys", "shares", "checks", "consents", "answers")
PIECE, LENGTH = bytes(1 << 20), 160 << 20
CLIENTS = ("ada", "bob", "cyd")


def endless(sent: list[int]) -> Iterator[bytes]:
    for _ in range(LENGTH // len(PIECE)):
        sent.append(len(PIECE))
        yield PIECE


def flood(besieged: Besieged, call: str, *, announced: bool) -> tuple[int, str, int]:
    """Status, code, and how many bytes were asked for."""
    path, sent = f"/v1/runs/run-1/rounds/1/clients/ada/{call}", list[int]()
    headers = {"Content-Type": "application/json"} | ({"Content-Length": str(LENGTH)} if announced else {})
    auth = besieged.signing("ada", body=b"another")
    answer = httpx.put(f"{besieged.url}{path}", content=endless(sent), headers=headers, auth=auth, timeout=60.0)
    return answer.status_code, answer.json()["code"], sum(sent)


@pytest.mark.parametrize("announced", [True, False])
def test_messages_without_end_are_cut_off_and_take_no_memory(tmp_path: Path, announced: bool) -> None:
    with Besieged(tmp_path, {"secure": True}).running() as besieged, ThreadPoolExecutor(len(MESSAGES)) as pool:
        besieged.join(*CLIENTS)
        assert besieged.start_run(clients=3).status_code == 201
        idle = besieged.forget_peak()
        calls = [pool.submit(flood, besieged, call, announced=announced) for call in MESSAGES]
        assert besieged.is_answered("bob")
        for status, code, sent in (call.result() for call in calls):
            # No client sends a body of a length that it does not know: its head is refused.
            assert (status, code) == ((413, "too-large") if announced else (400, "request-head"))
            assert sent < LENGTH / 4
        assert besieged.peak - idle < MOST_MEBIBYTES


def test_of_whoever_may_not_send_it_nothing_is_read(tmp_path: Path) -> None:
    """Not of a stranger, not in another's name, not for a run that there is not."""
    with Besieged(tmp_path, {"secure": True}).running() as besieged:
        besieged.join(*CLIENTS)
        besieged.start_run(clients=3)
        idle = besieged.forget_peak()
        for run, client, expected in (("run-1", "bob", 403), ("run-7", "ada", 404)):
            sent = list[int]()
            path = f"/v1/runs/{run}/rounds/1/clients/{client}/shares"
            auth = besieged.signing("ada", body=b"another")
            said = {"Content-Length": str(LENGTH)}
            answer = httpx.put(f"{besieged.url}{path}", content=endless(sent), headers=said, auth=auth, timeout=60.0)
            assert answer.status_code == expected and sum(sent) < LENGTH / 4
        assert besieged.peak - idle < MOST_MEBIBYTES
