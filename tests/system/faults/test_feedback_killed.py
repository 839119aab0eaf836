"""100,000 interactions by four writers over HTTP, and a client killed amid them: what was answered is there, once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from client_service.event_log.store import EventStore
from shared.protocol.signing.enrolment import ensure_key_pair
from simulation.ports import free_ports
from tests.support.given import Silos
from tests.support.questions import LONGEST_SECONDS

WRITERS, BATCHES, BATCH = 4, 250, 100
START_SECONDS = 180.0  # a bound alone


@contextmanager
def running(shard: Path, state: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A client process without an aggregator, which answers when this begins and is gone when it ends."""
    given = {"NAME": shard.name, "SHARD": str(shard), "STATE_DIRECTORY": str(state), "PORT": str(port)}
    environment = {f"LPSFED_CLIENT_{name}": value for name, value in given.items()}
    nowhere, command = subprocess.DEVNULL, [sys.executable, "-m", "client_service"]
    process = subprocess.Popen(command, env=os.environ | environment, stdin=nowhere, stdout=nowhere, stderr=nowhere)
    try:
        wait_until_ready(process, port)
        yield process
    finally:
        process.kill()
        process.wait()


def wait_until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    until = time.monotonic() + START_SECONDS
    while True:
        assert process.poll() is None and time.monotonic() < until, "the client is not ready"
        with suppress(httpx.TransportError):  # it does not listen yet
            if httpx.get(f"http://127.0.0.1:{port}/health/ready", trust_env=False).is_success:
                return
        time.sleep(0.05)


class Writers:
    """Post batches until the client is gone; `answered`: events whose batch was answered."""

    def __init__(self, port: int) -> None:
        self.url, self.answered, self.half = f"http://127.0.0.1:{port}", set[str](), threading.Event()

    def write(self, writer: int) -> None:
        with (
            httpx.Client(base_url=self.url, timeout=LONGEST_SECONDS, trust_env=False) as http,
            suppress(httpx.TransportError),
        ):
            for batch in range(BATCHES):
                self._post(http, [f"{writer}-{batch}-{place}" for place in range(BATCH)])

    def _post(self, http: httpx.Client, names: list[str]) -> None:
        events = [{"event": name, "user": f"user-{name}", "item": "item-00"} for name in names]
        answer = http.post("/v1/interactions", json={"interactions": events})
        assert answer.status_code == 200, answer.text
        self.answered.update(names)
        if len(self.answered) > WRITERS * BATCHES * BATCH // 2:
            self.half.set()

    def write_all(self) -> None:
        with ThreadPoolExecutor(WRITERS) as pool:
            list(pool.map(self.write, range(WRITERS)))


def held(state: Path) -> Counter[str]:
    """The users of the log, which are as many as its events."""
    store = EventStore(state)
    try:
        return Counter(one.user.removeprefix("user-") for one in store.interactions())
    finally:
        store.close()


def test_every_answered_event_is_there_and_none_is_twice(silos: Silos, tmp_path: Path) -> None:
    shard, state = silos(1)[0], tmp_path / "state"
    ensure_key_pair(shard.name, state)
    (port,) = free_ports(1)
    before = Writers(port)
    with running(shard, state, port) as process:
        thread = threading.Thread(target=before.write_all)
        thread.start()
        assert before.half.wait(START_SECONDS)
        process.send_signal(signal.SIGKILL)
        thread.join()
    found = held(state)
    total = WRITERS * BATCHES * BATCH
    assert total // 2 < len(before.answered) < total
    assert before.answered <= found.keys() and max(found.values()) == 1
    after = Writers(port)
    with running(shard, state, port):  # who got no answer posts it all again
        after.write_all()
    found = held(state)
    assert len(after.answered) == len(found) == total and max(found.values()) == 1
