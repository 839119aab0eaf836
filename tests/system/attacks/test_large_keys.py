"""A message of a secure round is no longer than an honest one can be, and no more of it is read.

Who: a registered client. Before, only an update had a limit: 1.5 GB sent to `keys` took the aggregator from 141 to
1,635 MiB, all of it read into memory before it was found to be no key.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.support.besieged import MOST_MEBIBYTES, Besieged
from tests.support.questions import LONGEST_SECONDS

MESSAGES = ("keys", "shares", "checks", "consents", "answers")
PIECE, LENGTH = bytes(1 << 20), 160 << 20


def endless(sent: list[int]) -> Iterator[bytes]:
    for _ in range(LENGTH // len(PIECE)):
        sent.append(len(PIECE))
        yield PIECE


def send(besieged: Besieged, path: str, *, announced: bool = True) -> tuple[httpx.Response, int]:
    """A body without end from ada -> the answer, and how many bytes were asked for."""
    sent, auth = list[int](), besieged.signing("ada", body=b"another")
    headers = {"Content-Type": "application/json"} | ({"Content-Length": str(LENGTH)} if announced else {})
    answer = httpx.put(
        f"{besieged.url}{path}", content=endless(sent), headers=headers, auth=auth, timeout=LONGEST_SECONDS
    )
    return answer, sum(sent)


@pytest.fixture(scope="module")
def besieged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Besieged]:
    """In the first round of a secure run."""
    with Besieged(tmp_path_factory.mktemp("besieged"), {"secure": True}).running() as running:
        running.join("ada", "bob", "cyd")
        assert running.start_run(clients=3).status_code == 201
        yield running


@pytest.mark.parametrize("announced", [True, False])
def test_messages_without_end_are_cut_off_and_take_no_memory(besieged: Besieged, announced: bool) -> None:
    idle = besieged.forget_peak()
    with ThreadPoolExecutor(len(MESSAGES)) as pool:
        paths = [f"/v1/runs/run-1/rounds/1/clients/ada/{call}" for call in MESSAGES]
        calls = [pool.submit(send, besieged, path, announced=announced) for path in paths]
        assert besieged.is_answered("bob")
        for answer, sent in (call.result() for call in calls):
            # No client sends a body of a length that it does not know: its head is refused.
            expected = (413, "too-large") if announced else (400, "request-head")
            assert (answer.status_code, answer.json()["code"]) == expected and sent < LENGTH / 4
    assert besieged.peak - idle < MOST_MEBIBYTES


@pytest.mark.parametrize(("run", "client", "expected"), [("run-1", "bob", 403), ("run-7", "ada", 404)])
def test_of_whoever_may_not_send_it_nothing_is_read(besieged: Besieged, run: str, client: str, expected: int) -> None:
    """Not in another's name, not for a run that there is not."""
    idle = besieged.forget_peak()
    answer, sent = send(besieged, f"/v1/runs/{run}/rounds/1/clients/{client}/shares")
    assert answer.status_code == expected and sent < LENGTH / 4
    assert besieged.peak - idle < MOST_MEBIBYTES
