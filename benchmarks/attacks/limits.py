"""Memory and time that one caller can cost an aggregator.

python -m benchmarks.attacks.limits [--tree FOLDER] [--json]
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.support.besieged import Besieged
from tests.support.serving import HOST
from tests.system.attacks.test_many_empty_tensors import WIDE, many_empty_tensors

PIECE, PIECES = bytes(1 << 20), 300
HEADS, POLLS = 530, 530
HALF = b"GET /v1/runs/current HTTP/1.1\r\nHost: aggregator\r\nX-Half: "
PAUSE_SECONDS, LEAST_CALLS, LONGEST_SECONDS = 0.05, 10, 60.0


@dataclass(frozen=True)
class AbuseOutcome:
    """Outcome of one abuse.

    Sizes in MiB. slowest: seconds of the slowest honest call. refused: number of the `calls` honest ones.
    """

    abuse: str
    idle: float
    peak: float
    slowest: float
    calls: int
    refused: int


def flood_keys(service: Besieged, stack: ExitStack) -> None:
    """Sends five messages of a secure round of 300 MB each at once."""
    del stack
    with ThreadPoolExecutor(5) as pool:
        list(pool.map(lambda _: _send_endless_body(service), range(5)))


def _send_endless_body(service: Besieged) -> None:
    url = f"{service.url}/v1/runs/run-1/rounds/1/clients/ada/keys"
    auth = service.signing("ada", body=b"another")

    def endless_body() -> Iterator[bytes]:
        for _ in range(PIECES):
            yield PIECE

    headers = {"Content-Type": "application/json", "Content-Length": str(PIECES * len(PIECE))}
    with suppress(httpx.TransportError):
        httpx.put(url, content=endless_body(), headers=headers, auth=auth, timeout=LONGEST_SECONDS, trust_env=False)


def send_empty_tensors(service: Besieged, stack: ExitStack) -> None:
    """Sends an update of 24 MB with 400,000 tensors without values."""
    del stack
    body = many_empty_tensors()
    path = f"{service.url}/v1/runs/run-1/rounds/1/clients/ada/update"
    kind = {"Content-Type": "application/vnd.safetensors"}
    with suppress(httpx.TransportError):
        auth = service.signing("ada")
        httpx.put(path, content=body, headers=kind, auth=auth, timeout=LONGEST_SECONDS, trust_env=False)


def hold_heads(service: Besieged, stack: ExitStack) -> None:
    """Sends 530 requests without a signature whose heads never end."""
    for _ in range(HEADS):
        stack.enter_context(socket.create_connection((HOST, service.port))).sendall(HALF)
    time.sleep(2.0)


def hold_polls(service: Besieged, stack: ExitStack) -> None:
    """Opens 530 long polls of one client, half a minute each."""
    path = f"/v1/runs/current?wait=30&after={service.sequence('ada')}"
    for _ in range(POLLS):
        signed = service.signing("ada").headers("GET", path.encode(), b"")
        head = "".join(f"{name}: {value}\r\n" for name, value in signed.items())
        line = stack.enter_context(socket.create_connection((HOST, service.port)))
        line.sendall(f"GET {path} HTTP/1.1\r\nHost: aggregator\r\n{head}\r\n".encode())
    time.sleep(2.0)


ABUSES: dict[str, tuple[Callable[[Besieged, ExitStack], None], dict[str, Any]]] = {
    "large keys": (flood_keys, {"told": {"secure": True}}),
    "many empty tensors": (send_empty_tensors, {"method": WIDE}),
    "half-sent heads": (hold_heads, {}),
    "many waiting polls": (hold_polls, {}),
}


def measure_abuse(name: str, folder: Path, tree: Path | None) -> AbuseOutcome:
    """Measures one abuse against a service of its own."""
    abuse, how = ABUSES[name]
    with ExitStack() as stack, Besieged(folder, tree=tree, **how).running() as service, ThreadPoolExecutor(1) as pool:
        service.join("ada", "bob", "cyd")
        service.start_run(clients=3, rounds=1)
        idle = service.forget_peak()
        slowest, calls, refused = _call_honestly(service, pool.submit(abuse, service, stack))
        return AbuseOutcome(name, round(idle, 1), round(service.peak, 1), round(slowest, 3), calls, refused)


def _call_honestly(service: Besieged, under_way: Future[None]) -> tuple[float, int, int]:
    """Calls as an honest client until the abuse is over.

    Returns seconds of the slowest call, number of calls, and number without an answer.
    """
    slowest, calls, refused = 0.0, 0, 0
    while not under_way.done() or calls < LEAST_CALLS:
        began, answered = time.perf_counter(), False
        with suppress(httpx.TransportError):
            answered = service.is_answered("bob")
        slowest, calls, refused = max(slowest, time.perf_counter() - began), calls + 1, refused + (not answered)
        time.sleep(PAUSE_SECONDS)
    return slowest, calls, refused


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tree", type=Path, help="the folder of another version; else this one")
    parser.add_argument("--only", choices=list(ABUSES), action="append", help="this abuse; else all")
    parser.add_argument("--json", action="store_true", help="one line of JSON an abuse")
    given = parser.parse_args(arguments)
    for name in given.only or ABUSES:
        with tempfile.TemporaryDirectory() as folder:
            outcome = measure_abuse(name, Path(folder), given.tree)
        sys.stdout.write((json.dumps(asdict(outcome)) if given.json else _outcome_line(outcome)) + "\n")
        sys.stdout.flush()
    return 0


def _outcome_line(outcome: AbuseOutcome) -> str:
    honest = f"honest calls: slowest {outcome.slowest:.2f} s, {outcome.refused} of {outcome.calls} not answered"
    return f"{outcome.abuse:<20} {outcome.idle:6.1f} -> {outcome.peak:7.1f} MiB; {honest}"


if __name__ == "__main__":
    sys.exit(main())
