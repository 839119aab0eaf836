"""One command -> a federation of real processes: trained, measured, and answering."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import httpx

from client_service.shard import read_shard
from simulation.experiment import Experiment
from simulation.federation import Observe, Outcome, conduct
from simulation.processes import Addresses, Children, addresses, connected, processes
from simulation.study import study

KEPT = "processes.json"
CALL_SECONDS = 10.0


@dataclass(frozen=True)
class Shown:
    """What the demo ends with."""

    report: dict[str, Any]
    ledgers: dict[str, list[dict[str, Any]]]
    url: str
    answer: dict[str, Any]


def demonstrate(experiment: Experiment, *, edges_kept: float | None, shown: bool, keep_in: Path | None = None) -> Shown:
    """Start the services, train, report, ask for one recommendation. `keep_in`: leave them running, noted there."""
    places = addresses(experiment)
    with processes(experiment, places) as children:

        def over_loopback(experiment: Experiment, observe: Observe) -> Outcome:
            return anyio.run(_conducted, experiment, places, children, observe)

        report = study(experiment, over_loopback, edges_kept=edges_kept, shown=shown)
        ledgers = {name: _ledger(url) for name, url in places.clients.items()}
        url = _example(experiment, places)
        answer = httpx.get(url, timeout=CALL_SECONDS).raise_for_status().json()
        if keep_in is not None:
            _write_kept(keep_in, places, children.keep())
    return Shown(report, ledgers, url, answer)


async def _conducted(experiment: Experiment, places: Addresses, children: Children, observe: Observe) -> Outcome:
    async with connected(experiment, places, children) as federation:
        return await conduct(federation, experiment.request(), observe)


def _ledger(url: str) -> list[dict[str, Any]]:
    """All entries of a client's ledger, page by page."""
    entries: list[dict[str, Any]] = []
    while True:
        query = {"after": len(entries), "limit": 1000}
        page = httpx.get(f"{url}/v1/ledger", params=query, timeout=CALL_SECONDS).raise_for_status().json()
        entries += page["entries"]
        if not page["entries"] or len(entries) >= page["total"]:
            return entries


def _example(experiment: Experiment, places: Addresses) -> str:
    """A real user of the first client."""
    shard = experiment.shards[0]
    user = httpx.URL(places.clients[shard.name]).copy_with(
        path=f"/v1/users/{read_shard(shard).user_ids[0]}/recommendations", params={"k": 5}
    )
    return str(user)


def _write_kept(folder: Path, places: Addresses, pids: dict[str, int]) -> None:
    urls = {"aggregator": places.aggregator, **places.clients}
    kept = {name: {"pid": pid, "url": urls[name]} for name, pid in pids.items()}
    (folder / KEPT).write_text(json.dumps(kept, indent=1), encoding="utf-8")


def stop_kept(folder: Path) -> list[str]:
    """End the services that an earlier demo left running; their names.

    A process that no longer answers at its address is left alone: its number may be somebody else's by now.
    """
    path = folder / KEPT
    if not path.exists():
        return []
    kept = json.loads(path.read_text(encoding="utf-8"))
    stopped = [name for name, one in kept.items() if _stopped(one["pid"], one["url"])]
    path.unlink()
    return stopped


def _stopped(pid: int, url: str) -> bool:
    try:
        httpx.get(f"{url}/health/live", timeout=CALL_SECONDS)
        os.kill(pid, signal.SIGTERM)
    except (httpx.TransportError, ProcessLookupError):
        return False
    return True
