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

from shared.new_files import PRIVATE, write_new
from shared.timeouts import TIMEOUT_SECONDS
from simulation.experiment import Experiment
from simulation.federation import Observe, Outcome, conduct_run
from simulation.processes import Addresses, Children, choose_addresses, connect_services, start_services
from simulation.study import run_study
from simulation.tasks import Example, simulated_task
from simulation.worth import COMMON, STRICT, Ledgers, Way, federated_way, own_ways

KEPT = "processes.json"


@dataclass(frozen=True)
class DemoResult:
    """What the demo ends with. `key_file` holds the key for `url`, `page_key_file` the key for the pages.

    answer: what the silo says to the example that lies at `url`. ways: what each silo has alone, in the strict boundary
    and, where the experiment has one, with the common basis.
    """

    report: dict[str, Any]
    ways: tuple[Way, ...]
    ledgers: dict[str, list[dict[str, Any]]]
    url: str
    example: Example
    key_file: Path
    page_key_file: Path
    answer: dict[str, Any]


def run_demonstration(
    experiment: Experiment, *, edges_kept: float | None, shown: bool, keep_in: Path | None = None
) -> DemoResult:
    """Start the services, train in the strict boundary and then, where there is one, with the common basis; report, and
    ask for one recommendation.

    `keep_in`: a folder in which the services are recorded and left running.
    """
    places, outcomes = choose_addresses(experiment), list[Outcome]()
    with start_services(experiment, places) as children:

        def over_loopback(experiment: Experiment, observe: Observe) -> Outcome:
            outcomes.extend(anyio.run(_conduct_over_loopback, experiment, places, children, observe))
            return outcomes[-1]

        report = run_study(experiment, over_loopback, edges_kept=edges_kept, shown=shown)
        ledgers = {name: _read_ledger(url, experiment.operator_key) for name, url in places.clients.items()}
        ways = _compare_ways(experiment, report, outcomes, ledgers)
        shard, keys = experiment.shards[0], _write_keys(experiment)
        example = simulated_task(experiment.task).find_example(shard)
        url = places.clients[shard.name] + example.path
        answer = example.choose(_ask_json(url, experiment.application_key, example.body))
        if keep_in is not None:
            _write_kept_services(keep_in, places, children.keep_running())
    return DemoResult(report, ways, ledgers, url, example, *keys, answer)


async def _conduct_over_loopback(
    experiment: Experiment, places: Addresses, children: Children, observe: Observe
) -> list[Outcome]:
    """The outcome of each training run."""
    async with connect_services(experiment, places, children) as federation:
        outcomes = [await conduct_run(federation, experiment.strict_request(), observe)]
        if experiment.method.basis.kind != "off":
            outcomes.append(await conduct_run(federation, experiment.run_request(), observe))
    return outcomes


def _compare_ways(
    experiment: Experiment, report: dict[str, Any], outcomes: list[Outcome], ledgers: Ledgers
) -> tuple[Way, ...]:
    declaration, ways = experiment.make_aggregator_settings().declaration(), own_ways(report)
    strict = STRICT if experiment.strategy == "lpsfed" else f"{experiment.strategy}, no other exchange"
    for name, outcome in zip((strict, COMMON), outcomes, strict=False):
        basis, run = outcome.history.request.basis, outcome.history.run
        runs = (run,) if basis is None else (basis, run)
        results = tuple(outcome.qualities.values())
        ways.append(federated_way(name, results, runs, ledgers, declaration))
    return tuple(ways)


def _fetch_json(url: str, key: str, **query: int) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {key}"}
    answer = httpx.get(url, params=query or None, headers=headers, timeout=TIMEOUT_SECONDS).raise_for_status()
    content: dict[str, Any] = answer.json()
    return content


def _ask_json(url: str, key: str, body: dict[str, Any] | None) -> dict[str, Any]:
    if body is None:
        return _fetch_json(url, key)
    headers = {"Authorization": f"Bearer {key}"}
    content: dict[str, Any] = (
        httpx.post(url, json=body, headers=headers, timeout=TIMEOUT_SECONDS).raise_for_status().json()
    )
    return content


def _write_keys(experiment: Experiment) -> tuple[Path, Path]:
    """The keys of the clients' APIs, the application's and the operator's, each in a file for its owner alone."""
    paths = experiment.folder / "application.key", experiment.folder / "operator.key"
    for path, key in zip(paths, (experiment.application_key, experiment.operator_key), strict=True):
        write_new(path, key.encode("ascii"), PRIVATE)
    return paths


def _read_ledger(url: str, key: str) -> list[dict[str, Any]]:
    """All entries of a client's ledger, page by page."""
    entries: list[dict[str, Any]] = []
    while True:
        page = _fetch_json(f"{url}/v1/ledger", key, after=len(entries), limit=1000)
        entries += page["entries"]
        if not page["entries"] or len(entries) >= page["total"]:
            return entries


def _write_kept_services(folder: Path, places: Addresses, pids: dict[str, int]) -> None:
    urls = {"aggregator": places.aggregator, **places.clients}
    kept = {name: {"pid": pid, "url": urls[name]} for name, pid in pids.items()}
    (folder / KEPT).write_text(json.dumps(kept, indent=1), encoding="utf-8")


def stop_kept_services(folder: Path) -> list[str]:
    """End the services that an earlier demo left running; their names.

    A process that no longer answers at its address is left alone: its number may be somebody else's by now.
    """
    path = folder / KEPT
    if not path.exists():
        return []
    kept = json.loads(path.read_text(encoding="utf-8"))
    stopped = [name for name, service in kept.items() if _stop_service(service["pid"], service["url"])]
    path.unlink()
    return stopped


def _stop_service(pid: int, url: str) -> bool:
    try:
        httpx.get(f"{url}/health/live", timeout=TIMEOUT_SECONDS)
        os.kill(pid, signal.SIGTERM)
    except (httpx.TransportError, ProcessLookupError):
        return False
    return True
