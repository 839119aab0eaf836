"""`lpsfed demo`: runs a federation of real processes, and stops demos that still run."""

from __future__ import annotations

import json
import os
import signal
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from shared.errors import SettingsError
from shared.files import PRIVATE, write_new

if TYPE_CHECKING:
    from simulation.experiments.experiment import Experiment
    from simulation.experiments.federation import Observe, Outcome
    from simulation.experiments.processes import Addresses, ServiceProcesses
    from simulation.experiments.tasks import Example
    from simulation.reports.joining_value import Ledgers, ServingOption, ShopGain

RECORD, TOKEN = "processes.json", "aggregator.token"
FIRST_PORT = 8800
STOP_SECONDS, POLL_SECONDS = 20.0, 0.1


@dataclass(frozen=True)
class DemoResult:
    """Result of a demo.

    report: of the experiment. ways: what each silo has alone, in the strict boundary and, where the experiment sums,
    with sums. ledgers: by silo. url: of the example request; example: that request; answer: what the silo answers.
    key_file: key for `url`; page_key_file: for the silos' pages; token_file: for the aggregator. places: addresses of
    all services. shops: gain of each silo on its own test items. new: an item without interactions in a list, or
    None.
    """

    report: dict[str, Any]
    ways: tuple[ServingOption, ...]
    ledgers: dict[str, list[dict[str, Any]]]
    url: str
    example: Example
    key_file: Path
    page_key_file: Path
    token_file: Path
    places: Addresses
    answer: dict[str, Any]
    shops: tuple[ShopGain, ...]
    new: NewItemExample | None


@dataclass(frozen=True)
class NewItemExample:
    """Item without interactions in the last place of a list.

    place: from 1 on. because: titles of the user's own items that count most for it.
    """

    url: str
    user: str
    place: int
    item: str
    title: str
    because: tuple[str, ...]

    @property
    def line(self) -> str:
        """Description in one sentence."""
        like = f", because its text is like that of {', '.join(self.because)}" if self.because else ""
        kept = f"Place {self.place} of the list of {self.user} is reserved for an item without purchases"
        return f"{kept}: {self.item}, {self.title}{like}."


def run_demonstration(
    experiment: Experiment, places: Addresses, *, edges_kept: float | None, shown: bool, root: Path, keep: bool = False
) -> DemoResult:
    """Starts the services, trains, reports and asks for one recommendation.

    It trains in the strict boundary, unless sums alone are sent, and then with the common basis, where there is one.
    The processes are recorded in `root`, the demos' folder, and in the user's list of demos. keep: leave the services
    running. However else this process ends, by SIGKILL too, the services end with it.
    """
    from shared.sums import list_sums
    from simulation.engines.study import run_study
    from simulation.experiments.federation import Outcome
    from simulation.experiments.processes import start_services
    from simulation.experiments.tasks import simulated_task
    from simulation.reports.joining_value import shop_gains

    outcomes = list[Outcome]()
    with _exit_at_sigterm(), start_services(experiment, places) as children, _record_services(root, places, children):

        def over_loopback(experiment: Experiment, observe: Observe) -> Outcome:
            outcomes.extend(anyio.run(_conduct_over_loopback, experiment, places, children, observe))
            return outcomes[-1]

        report = run_study(experiment, over_loopback, edges_kept=edges_kept, shown=shown)
        ledgers = {name: _read_ledger(url, experiment.operator_key) for name, url in places.clients.items()}
        ways = _compare_options(experiment, report, outcomes, ledgers)
        shard, keys = experiment.shards[0], _write_keys(experiment)
        example = simulated_task(experiment.task).find_example(shard)
        url = places.clients[shard.name] + example.path
        answer = example.choose(_ask_json(url, experiment.application_key, example.body))
        new = _find_new_item(experiment, places)
        if keep:
            children.keep_running()
    lone = simulated_task(experiment.task).find_lone_shards(experiment.shards)
    shops = () if not list_sums(experiment.method) else shop_gains(outcomes[-1].qualities, lone)
    return DemoResult(report, ways, ledgers, url, example, *keys, places, answer, shops, new)


def _find_new_item(experiment: Experiment, places: Addresses) -> NewItemExample | None:
    """Asks for lists of the first shop until one has a new item in it."""
    from simulation.experiments.tasks import simulated_task

    shard = experiment.shards[0]
    for path in simulated_task(experiment.task).list_new_item_requests(shard):
        url = places.clients[shard.name] + path
        answer = _ask_json(url, experiment.application_key, None)
        for place, one in enumerate(answer["items"], 1):
            if one.get("reason") == "new":
                because = tuple(reason.get("title") or reason["item"] for reason in one.get("because", ()))
                return NewItemExample(url, answer["user"], place, one["item"], one.get("title") or "", because)
    return None


async def _conduct_over_loopback(
    experiment: Experiment, places: Addresses, children: ServiceProcesses, observe: Observe
) -> list[Outcome]:
    """Runs the training runs over the services and returns their outcomes."""
    from shared.strategies import build_strategy
    from shared.sums import list_sums
    from simulation.experiments.federation import Outcome, execute_run
    from simulation.experiments.processes import connect_services

    async with connect_services(experiment, places, children) as federation:
        outcomes = list[Outcome]()
        if not build_strategy(experiment.strategy, experiment.method).sums_alone:
            outcomes.append(await execute_run(federation, experiment.strict_request(), observe))
        if list_sums(experiment.method):
            outcomes.append(await execute_run(federation, experiment.run_request(), observe))
    return outcomes


def _compare_options(
    experiment: Experiment, report: dict[str, Any], outcomes: list[Outcome], ledgers: Ledgers
) -> tuple[ServingOption, ...]:
    from shared.sums import list_sums
    from simulation.reports.joining_value import (
        COMMON,
        CONTENT,
        GRAM,
        STRICT,
        TRANSITIONS,
        federated_option,
        local_options,
    )

    declaration, ways = experiment.make_aggregator_settings().declaration(), local_options(report)
    strict = STRICT if experiment.strategy == "lpsfed" else f"{experiment.strategy}, no other exchange"
    named = {"transitions": TRANSITIONS, "node_gram": GRAM}
    summed = named.get(experiment.method.basis.kind, CONTENT if experiment.method.sums else COMMON)
    alone = len(outcomes) == 1 and bool(list_sums(experiment.method))
    for name, outcome in zip((summed,) if alone else (strict, summed), outcomes, strict=False):
        asked = outcome.history.request
        used = (asked.over, asked.content, asked.basis, outcome.history.run)
        runs = tuple(run for run in used if run is not None)
        results = tuple(outcome.qualities.values())
        ways.append(federated_option(name, results, runs, ledgers, declaration))
    return tuple(ways)


def _fetch_json(url: str, key: str, **query: int) -> dict[str, Any]:
    import httpx

    from shared.timeouts import TIMEOUT_SECONDS

    headers = {"Authorization": f"Bearer {key}"}
    answer = httpx.get(url, params=query or None, headers=headers, timeout=TIMEOUT_SECONDS, trust_env=False)
    answer.raise_for_status()
    content: dict[str, Any] = answer.json()
    return content


def _ask_json(url: str, key: str, body: dict[str, Any] | None) -> dict[str, Any]:
    import httpx

    from shared.timeouts import TIMEOUT_SECONDS

    if body is None:
        return _fetch_json(url, key)
    headers = {"Authorization": f"Bearer {key}"}
    answer = httpx.post(url, json=body, headers=headers, timeout=TIMEOUT_SECONDS, trust_env=False)
    content: dict[str, Any] = answer.raise_for_status().json()
    return content


def _write_keys(experiment: Experiment) -> tuple[Path, Path, Path]:
    """Writes the keys of application and operator and the aggregator's token for their owner alone."""
    application, operator, token = (experiment.folder / name for name in ("application.key", "operator.key", TOKEN))
    write_new(application, experiment.application_key.encode("ascii"), PRIVATE)
    write_new(operator, experiment.operator_key.encode("ascii"), PRIVATE)
    write_new(token, experiment.token.encode("ascii"), PRIVATE)
    return application, operator, token


def _read_ledger(url: str, key: str) -> list[dict[str, Any]]:
    """Reads all entries of a client's ledger, page by page."""
    entries: list[dict[str, Any]] = []
    while True:
        page = _fetch_json(f"{url}/v1/ledger", key, after=len(entries), limit=1000)
        entries += page["entries"]
        if not page["entries"] or len(entries) >= page["total"]:
            return entries


@contextmanager
def _exit_at_sigterm() -> Iterator[None]:
    """Ends the block in order at SIGTERM, as Ctrl-C does."""

    def leave(number: int, frame: object) -> None:
        del frame
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _record_services(root: Path, places: Addresses, children: ServiceProcesses) -> Iterator[None]:
    """Records the running services in the folder and in the user's list, for `demo --stop`."""
    urls = {"aggregator": places.aggregator, **places.clients}
    services = {
        name: {"pid": pid, "began": read_start_time(pid), "url": urls[name]} for name, pid in children.pids.items()
    }
    command = {"pid": os.getpid(), "began": read_start_time(os.getpid())}
    record = json.dumps({"folder": str(root.resolve()), "command": command, "services": services}, indent=1).encode()
    paths = [root / RECORD]
    paths[0].unlink(missing_ok=True)
    write_new(paths[0], record, PRIVATE)
    with suppress(OSError, RuntimeError, SettingsError):  # without a home `--folder` still finds it
        demos_folder().mkdir(parents=True, exist_ok=True, mode=0o700)
        paths.append(demos_folder() / f"{uuid.uuid4().hex}.json")
        write_new(paths[-1], record, PRIVATE)
    try:
        yield
    finally:
        if not children.kept:
            for path in paths:
                path.unlink(missing_ok=True)


def demos_folder() -> Path:
    """Returns the folder with one file per demo of this user whose services run."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "lpsfed" / "demos"


def stop_demos(folder: Path | None = None) -> list[str]:
    """Stops the demos of a folder, by default all of this user.

    Returns a line for each that was stopped.

    A process whose start time differs from the record is left alone: the system has given its number to another
    process.
    """
    records = list[Path]()
    with suppress(OSError, RuntimeError):  # no home: no list
        records += sorted(demos_folder().glob("*.json"))
    records += [] if folder is None else [folder / RECORD]
    ended = []
    for path in records:
        with suppress(FileNotFoundError, NotADirectoryError):
            record = json.loads(path.read_text(encoding="utf-8"))
            home = Path(record.get("folder", path.parent))
            if folder is not None and home.resolve() != folder.resolve():
                continue
            services = record.get("services", record)  # earlier versions wrote the services alone
            if "command" in record and _end_process(record["command"]):  # it trains, and ends its services itself
                ended.append(f"demo in {home}")
            ended += [f"{name} of the demo in {home}" for name, service in services.items() if _end_process(service)]
            path.unlink(missing_ok=True)
            (home / RECORD).unlink(missing_ok=True)
    return ended


def read_start_time(pid: int) -> str | None:
    """Reads an identifier of a process's start.

    It tells the process from a later one of the same number.

    None if the process has ended, or where the system has no /proc.
    """
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None
    return None if state in "ZX" else f"{boot} {fields[18]}"


def _end_process(process: Mapping[str, Any]) -> bool:
    """Sends SIGTERM and waits for the end. False if the process has ended already."""
    pid, began, url = process["pid"], process.get("began"), process.get("url")
    if pid == os.getpid() or not _is_running(pid, began, url):
        return False
    os.kill(pid, signal.SIGTERM)
    until = time.monotonic() + STOP_SECONDS
    while _is_running(pid, began, url):
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            break
        time.sleep(POLL_SECONDS)
    return True


def _is_running(pid: int, began: str | None, url: str | None) -> bool:
    """Tells whether the recorded process runs: one of the same number may be another one.

    It is the recorded one if its start time equals `began`. Without a start time (no /proc) it must exist and answer
    at `url`.
    """
    import httpx

    from shared.timeouts import TIMEOUT_SECONDS

    if began is not None:
        return read_start_time(pid) == began
    try:
        if url is not None:
            httpx.get(f"{url}/health/live", timeout=TIMEOUT_SECONDS, trust_env=False)
        os.kill(pid, 0)
    except (httpx.TransportError, ProcessLookupError, PermissionError):
        return False
    return url is not None
