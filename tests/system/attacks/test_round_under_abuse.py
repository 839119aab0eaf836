"""An honest secure run ends as if nobody else called, while others do to the aggregator what they can.

Who: anybody who can reach the port, and a registered client. Before, half-sent heads had every client answered with
503, and messages of one client filled the memory of the machine.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import httpx
import pytest

from shared.method.settings import MethodSettings
from shared.protocol.signing.enrolment import enrol_client
from shared.protocol.signing.keys import read_private
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import Outcome, Progress, execute_run
from simulation.experiments.processes import choose_addresses, connect_services, start_services
from tests.support.besieged import MOST_MEBIBYTES
from tests.support.gauge import Gauge
from tests.support.signing import Signing

if TYPE_CHECKING:
    from conftest import Silos

pytestmark = [pytest.mark.anyio, pytest.mark.processes]
HALF = b"GET /v1/runs/current HTTP/1.1\r\nHost: aggregator\r\nX-Half: "
LINES, PIECE, PIECES, PAUSE_SECONDS = 530, bytes(1 << 20), 300, 0.2
Abuse = Callable[[str, Signing, threading.Event], None]


def hold_heads(url: str, who: Signing, over: threading.Event) -> None:
    """As many requests at once as the port takes, whose heads do not end; those that are cut off come again."""
    del who
    place = urlsplit(url)
    while not over.is_set():
        with ExitStack() as stack:
            for _ in range(LINES):
                with suppress(OSError):
                    line = stack.enter_context(closing(socket.create_connection((place.hostname, place.port), 5.0)))
                    line.sendall(HALF)
            over.wait(PAUSE_SECONDS)


def flood_keys(url: str, who: Signing, over: threading.Event) -> None:
    """Messages of a secure round of 300 MB, one after the other, by a registered client."""

    def endless() -> Iterator[bytes]:
        for _ in range(PIECES):
            yield PIECE

    headers = {"Content-Type": "application/json", "Content-Length": str(PIECES * len(PIECE))}
    path = f"{url}/v1/runs/run-1/rounds/1/clients/{who.name}/keys"
    while not over.wait(PAUSE_SECONDS):
        with suppress(httpx.TransportError):
            httpx.put(path, content=endless(), headers=headers, auth=who, timeout=10.0)


@contextmanager
def under_way(abuse: Abuse, url: str, who: Signing) -> Iterator[None]:
    over = threading.Event()
    thread = threading.Thread(target=abuse, args=(url, who, over))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def ignore(progress: Progress) -> None:
    del progress


@pytest.mark.slow
async def test_the_run_ends_with_everybody_in_it_and_the_aggregator_stays_small(
    silos: Silos, small: MethodSettings, tmp_path: Path
) -> None:
    """A run under each abuse, both in the same processes: their start takes longer than a run."""
    one = Experiment(silos(3), tmp_path, small, rounds=2, device="cpu", secure=True)
    mallory = read_private(enrol_client("mallory", tmp_path / "mallory", one.registry).private)
    who, places = Signing("mallory", mallory, body=b"another"), choose_addresses(one)
    with start_services(one, places) as children:
        async with connect_services(one, places) as federation:
            aggregator = Gauge(children.processes["aggregator"].pid)
            idle = aggregator.resident()
            for abuse in (flood_keys, hold_heads):  # the first one knows the name of the first run
                with under_way(abuse, places.aggregator, who):
                    outcome: Outcome = await execute_run(federation, one.run_request(), ignore)
                assert outcome.history.phase == "finished", abuse
                assert all(part.received for number in outcome.history.rounds for part in number.participants), abuse
                assert aggregator.peak() - idle < MOST_MEBIBYTES, abuse
                aggregator.forget_peak()
