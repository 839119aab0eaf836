"""Small federation in a folder, enrolled by one commit and served by any."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from benchmarks.compare_commits.cases import SMALL, write_small_data
from benchmarks.compare_commits.runs import Launcher
from benchmarks.compare_commits.trees import Tree
from simulation.experiments.processes import stop_services
from simulation.ports import free_ports

CLIENTS = ("client-1", "client-2", "client-3")
AGGREGATOR = "aggregator"
OPERATOR, APPLICATION, SILO = "operator.token", "application.key", "silo.key"
START_SECONDS, STOP_SECONDS, ANSWER_SECONDS = 600.0, 60.0, 60.0
PRIVATE_CLIENT = CLIENTS[-1]  # of the open federation: it has an account to open
PRIVACY = {"MECHANISM": "gaussian", "CLIP_NORM": "1", "NOISE_MULTIPLIER": "2", "DELTA": "1e-5", "BUDGET": "1000"}
METHOD = {name.upper().replace(".", "__"): value for name, _, value in (word.partition("=") for word in SMALL)}


@dataclass(frozen=True)
class ServiceFederation:
    """Folders of all services; their content is relocatable, so they may be copied."""

    folder: Path
    secure: bool

    def aggregator_settings(self, port: int) -> dict[str, str]:
        """Returns the environment of the aggregator."""
        return _environment_variables(
            "LPSFED_AGGREGATOR",
            STATE_DIRECTORY=self.folder / AGGREGATOR,
            OPERATOR_TOKEN_FILE=self.folder / OPERATOR,
            KEYS_DIRECTORY=self.folder / "keys",
            SECURE=self.secure,
            PORT=port,
            **{f"METHOD__{name}": value for name, value in METHOD.items()},
        )

    def client_settings(self, name: str, port: int, aggregator_url: str) -> dict[str, str]:
        """Returns the environment of one client."""
        more: dict[str, object] = {"MEMBERS": self.folder / "members.toml"} if self.secure else {}
        if name == PRIVATE_CLIENT and not self.secure:
            more |= {f"PRIVACY__{key}": value for key, value in PRIVACY.items()}
        return _environment_variables(
            "LPSFED_CLIENT",
            NAME=name,
            SHARD=self.folder / "shards" / name,
            STATE_DIRECTORY=self.folder / name,
            APPLICATION_KEY_FILE=self.folder / APPLICATION,
            OPERATOR_KEY_FILE=self.folder / SILO,
            AGGREGATOR_URL=aggregator_url,
            POLL_SECONDS=0.05,
            SECURE=self.secure,
            PORT=port,
            **more,
            **{f"METHOD__{name}": value for name, value in METHOD.items()},
        )


def _environment_variables(prefix: str, **settings: object) -> dict[str, str]:
    return {
        f"{prefix}_{name}": str(value).lower() if value is True or value is False else str(value)
        for name, value in settings.items()
    }


def enrol_federation(launcher: Launcher, folder: Path) -> None:
    """Creates shards, secrets and key pairs of a federation by the command line."""
    folder.mkdir(parents=True)
    write_small_data(folder / "small.csv")
    data, out, keys = str(folder / "small.csv"), str(folder / "shards"), str(folder / "keys")
    _run_checked(launcher, folder, "partition", data, "--out", out, "--clients", str(len(CLIENTS)))
    _run_checked(launcher, folder, "secret", *(str(folder / name) for name in (OPERATOR, APPLICATION, SILO)))
    for name in CLIENTS:
        _run_checked(launcher, folder, "keys", "new", name, "--out", str(folder / name))
        _run_checked(launcher, folder, "keys", "register", str(folder / name / f"{name}.pub"), "--keys", keys)


def write_members(launcher: Launcher, folder: Path) -> None:
    """Writes the file of members that each silo of a secure federation pins.

    The aggregator must have its key pair.
    """
    keys, own = str(folder / "keys"), str(folder / AGGREGATOR / "aggregator.pub")
    _run_checked(
        launcher, folder, "members", "write", str(folder / "members.toml"), "--keys", keys, "--aggregator", own
    )


def _run_checked(launcher: Launcher, folder: Path, *arguments: str) -> None:
    if launcher.run_command(arguments, folder, repeatable=False)["status"] != 0:
        raise RuntimeError(f"{' '.join(arguments)}: {(folder / 'stderr').read_text('utf-8')}")


@dataclass(frozen=True)
class RunningServices:
    """Running services of a federation by name, with their addresses."""

    processes: Mapping[str, subprocess.Popen[bytes]]
    urls: Mapping[str, str]
    federation: ServiceFederation

    def ask_service(self, service: str, path: str, key: str, **body: Any) -> Any:
        """Sends a GET, or a POST with a body, and returns the JSON answer.

        Raises HTTPStatusError for a refusal.
        """
        secret = (self.federation.folder / key).read_text("ascii").strip()
        answer = httpx.request(
            "POST" if body else "GET",
            self.urls[service] + path,
            json=body or None,
            headers={"Authorization": f"Bearer {secret}"},
            timeout=ANSWER_SECONDS,
            trust_env=False,
        )
        return answer.raise_for_status().json()

    def freeze_service(self, service: str) -> None:
        """Suspends a process until it is killed."""
        os.kill(self.processes[service].pid, signal.SIGSTOP)


@contextmanager
def serve_federation(
    tree: Tree, federation: ServiceFederation, launcher: Launcher | None = None
) -> Iterator[RunningServices]:
    """Starts all services of a federation from a tree, and stops them at the end.

    They end by SIGTERM, or by SIGKILL after a timeout. launcher: writes the file of members, in the first start of a
    secure federation. Logs: folder/NAME.log.
    """
    ports = free_ports(1 + len(CLIENTS))
    urls = {name: f"http://127.0.0.1:{port}" for name, port in zip((AGGREGATOR, *CLIENTS), ports, strict=True)}
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        processes[AGGREGATOR] = _start_service(tree, federation, AGGREGATOR, federation.aggregator_settings(ports[0]))
        if launcher is not None:
            _await_ready(processes[AGGREGATOR], urls[AGGREGATOR])
            write_members(launcher, federation.folder)
        for name, port in zip(CLIENTS, ports[1:], strict=True):
            processes[name] = _start_service(
                tree, federation, name, federation.client_settings(name, port, urls[AGGREGATOR])
            )
        for name, process in processes.items():
            _await_ready(process, urls[name])
        yield RunningServices(processes, urls, federation)
    finally:
        stop_services(list(processes.values()), STOP_SECONDS)


def _start_service(
    tree: Tree, federation: ServiceFederation, name: str, settings: dict[str, str]
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "aggregator_service" if name == AGGREGATOR else "client_service"]
    with (federation.folder / f"{name}.log").open("ab") as log:
        return subprocess.Popen(command, env=tree.process_environment() | settings, stdout=log, stderr=log)


def _await_ready(process: subprocess.Popen[bytes], url: str) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"{url}: the service ended with status {process.returncode}; see its log")
        try:
            if httpx.get(f"{url}/health/ready", timeout=ANSWER_SECONDS, trust_env=False).is_success:
                return
        except httpx.TransportError:
            pass  # not listening yet
        time.sleep(0.1)
    raise RuntimeError(f"{url}: expected a ready service within {START_SECONDS:g} s")
