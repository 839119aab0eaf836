"""State written by one commit and opened by another: served, and resumed where interrupted."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.compare_commits.facts import OF_A_ROUND, Facts, differing_names, flatten_value
from benchmarks.compare_commits.runs import Launcher, start_launcher
from benchmarks.compare_commits.services import (
    AGGREGATOR,
    APPLICATION,
    CLIENTS,
    OPERATOR,
    SILO,
    RunningServices,
    ServiceFederation,
    enrol_federation,
    serve_federation,
)
from benchmarks.compare_commits.trees import Tree

FIRST, SECOND = "run-1", "run-2"
ROUNDS = {FIRST: 2, SECOND: 8}
OPEN_ROUND = 3  # round of the second run in which it is interrupted, or a later one
RUN_SECONDS = 900.0
USERS = tuple(f"user-{number}" for number in range(6))
LOSSES = ("training_lost", "training_checkpoint_refused", "kept_release_refused")  # log events of unusable state
Tell = Callable[[str], None]


def state_complaints(base: Tree, head: Tree, folder: Path, tell: Tell) -> dict[str, list[str]]:
    """Lists faults with the state of `base` at `head`, by federation."""
    complaints = {}
    with start_launcher(base) as older, start_launcher(head) as newer:
        enrol_federation(older, folder / "enrolled")
        for mode, secure in (("open", False), ("secure", True)):
            shutil.copytree(folder / "enrolled", folder / mode / "first")
            complaints[mode] = list(_mode_complaints(base, head, folder / mode, secure, older, newer, tell))
            shutil.rmtree(folder / mode)
    return complaints


def _mode_complaints(
    base: Tree, head: Tree, folder: Path, secure: bool, older: Launcher, newer: Launcher, tell: Tell
) -> Iterator[str]:
    finished, stopped = (ServiceFederation(folder / name, secure) for name in ("finished", "stopped"))
    answers = _write_states(base, ServiceFederation(folder / "first", secure), finished, stopped, older, tell)
    resumed = ServiceFederation(Path(shutil.copytree(stopped.folder, folder / "resumed")), secure)
    expected = _resume_second_run(base, resumed, tell)
    results = {"resumed": _resume_second_run(head, stopped, tell)}
    results["run anew"] = _serve_and_rerun(head, finished, answers, tell)
    for name, got in results.items():
        for fact in differing_names(expected, got):
            yield f"{name}: {fact}: {expected.get(fact)} -> {got.get(fact)}"
    for federation in (finished, stopped):
        yield from _lost_state(federation)
        yield from _ledger_faults(federation, newer)


def _write_states(
    base: Tree,
    first: ServiceFederation,
    finished: ServiceFederation,
    stopped: ServiceFederation,
    older: Launcher,
    tell: Tell,
) -> Facts:
    """Completes one run, then interrupts a second one; returns the answers of the first.

    Each state is a copy of the folders.
    """
    with serve_federation(base, first, older if first.secure else None) as services:
        _begin_run(services, FIRST)
        _await_end(services, FIRST)
        answers = _read_recommendations(services)
    tell(f"{base.name}: {FIRST} has ended, secure {first.secure}")
    shutil.copytree(first.folder, finished.folder)
    with serve_federation(base, first) as services:
        _begin_run(services, SECOND)
        _await_open_round(services)
    tell(f"{base.name}: {SECOND} is interrupted, secure {first.secure}")
    shutil.copytree(first.folder, stopped.folder)
    return answers


def _resume_second_run(tree: Tree, federation: ServiceFederation, tell: Tell) -> Facts:
    """Resumes the second run to its end."""
    _delete_logs(federation)
    with serve_federation(tree, federation) as services:
        _await_end(services, SECOND)
        facts = _read_run_facts(services)
    tell(f"{tree.name}: {SECOND} has gone on to its end, secure {federation.secure}")
    return facts


def _serve_and_rerun(tree: Tree, federation: ServiceFederation, answers: Facts, tell: Tell) -> Facts:
    """Checks the first run's answers, then runs the second run from its beginning."""
    _delete_logs(federation)
    with serve_federation(tree, federation) as services:
        if wrong := differing_names(answers, _read_recommendations(services)):
            raise AssertionError(f"{tree.name}: expected the recommendations of {FIRST}, got others for {wrong}")
        _begin_run(services, SECOND)
        _await_end(services, SECOND)
        facts = _read_run_facts(services)
    tell(f"{tree.name}: {FIRST} was served and {SECOND} has run, secure {federation.secure}")
    return facts


def _delete_logs(federation: ServiceFederation) -> None:
    for log in federation.folder.glob("*.log"):
        log.unlink()


def _begin_run(services: RunningServices, run: str) -> None:
    method = _agreed_method(services)
    started = services.ask_service(
        AGGREGATOR, "/v1/runs", OPERATOR, rounds=ROUNDS[run], seed=5, clients=len(CLIENTS), method=method
    )
    assert started["run"] == run, started


def _agreed_method(services: RunningServices) -> dict[str, Any]:
    """Returns the federation's settings as JSON."""
    names = services.federation.aggregator_settings(0)
    prefix = "LPSFED_AGGREGATOR_METHOD__"
    method: dict[str, Any] = {"anchor": {}}
    for name, value in names.items():
        if name.startswith(prefix):
            outer, _, inner = name.removeprefix(prefix).lower().partition("__")
            (method[outer] if inner else method)[inner or outer] = int(value)
    return method


def _await_condition(services: RunningServices, expected: str, reached: Callable[[], bool]) -> None:
    until = time.monotonic() + RUN_SECONDS
    while not reached():
        if time.monotonic() > until:
            status = {name: services.ask_service(name, "/v1/status", SILO) for name in CLIENTS}
            raise AssertionError(f"expected {expected} within {RUN_SECONDS:g} s, got {json.dumps(status)}")
        time.sleep(0.1)


def _await_end(services: RunningServices, run: str) -> None:
    def has_ended() -> bool:
        history = services.ask_service(AGGREGATOR, f"/v1/runs/{run}", OPERATOR)
        assert history["phase"] != "failed", history
        qualities = [services.ask_service(name, "/v1/quality", SILO) for name in CLIENTS]
        return all(quality["run"] == run and quality["finished"] for quality in qualities)

    _await_condition(services, f"the end of {run}", has_ended)


def _await_open_round(services: RunningServices) -> None:
    """Freezes one client during the run and waits until the others stop."""

    def read_history() -> Any:
        return services.ask_service(AGGREGATOR, f"/v1/runs/{SECOND}", OPERATOR)

    _await_condition(services, f"round {OPEN_ROUND}", lambda: len(read_history()["rounds"]) >= OPEN_ROUND)
    services.freeze_service(CLIENTS[0])
    seen: list[Any] = []

    def is_still() -> bool:
        seen.append(read_history())
        time.sleep(1.0)
        return len(seen) > 1 and seen[-1] == seen[-2]

    _await_condition(services, "a round that stays open", is_still)
    assert seen[-1]["phase"] == "open", seen[-1]


def _read_recommendations(services: RunningServices) -> Facts:
    """Reads recommendations of every client for the same users."""
    return {
        f"{client} {user}": json.dumps(
            services.ask_service(client, f"/v1/users/{user}/recommendations?k=10", APPLICATION)
        )
        for client in CLIENTS
        for user in USERS
    }


def _read_run_facts(services: RunningServices) -> Facts:
    """Reads figures, digests, updates and recommendations of the second run."""
    facts = _read_recommendations(services)
    for client in CLIENTS:
        quality = services.ask_service(client, "/v1/quality", SILO)
        rounds = [{name: entry[name] for name in ("round", *OF_A_ROUND)} for entry in quality["rounds"]]
        figures = {name: quality[name] for name in ("best_round", "test", "shared_digest")} | {"rounds": rounds}
        facts |= dict(flatten_value(figures, client))
    history = services.ask_service(AGGREGATOR, f"/v1/runs/{SECOND}", OPERATOR)
    return facts | dict(_update_facts(history, services.federation.secure))


def _update_facts(history: dict[str, Any], secure: bool) -> Iterator[tuple[str, str]]:
    for entry in history["rounds"]:
        for participant in entry["participants"]:
            name = f"update {participant['client']} round {entry['number']}"
            yield name, str(participant["received"] if secure else participant["digest"])


def _lost_state(federation: ServiceFederation) -> Iterator[str]:
    """Yields log entries about state that a client could not use."""
    for client in CLIENTS:
        log = (federation.folder / f"{client}.log").read_text("utf-8")
        yield from (f"{federation.folder.name}: {client}: {word}" for word in LOSSES if word in log)


def _ledger_faults(federation: ServiceFederation, newer: Launcher) -> Iterator[str]:
    for client in CLIENTS:
        folder = federation.folder
        command = ["ledger", "verify", "--state-directory", str(folder / client)]
        if newer.run_command(command, folder, repeatable=False)["status"] != 0:
            yield f"{folder.name}: {client}: {(folder / 'stdout').read_text('utf-8').strip()}"
