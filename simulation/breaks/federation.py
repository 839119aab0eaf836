"""Containers on this machine -> the one federation of docker-compose.yml that runs there, as it was brought up."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.errors import SettingsError, UnavailableError
from simulation.breaks.engine import Engine, compose_command

SILOS = tuple(f"client-{number}" for number in range(1, 5))
SERVING = ("aggregator", *SILOS, "gateway", *(f"gateway-{number}" for number in range(1, 5)))
PROBES = tuple(f"probe-{name}" for name in SERVING)
TOOLS = "lpsfed/tools:0.1.0"
LABEL = "com.docker.compose"
NEVER_BROKEN = "gateway"  # no break changes it: it knows by which files the federation was brought up
# What its user chose when bringing it up -> where it stands in a container, and what it is without a choice.
CHOSEN = {
    "LPSFED_SECURE": ("aggregator", "LPSFED_AGGREGATOR_SECURE"),
    "LPSFED_QUARANTINE_REFUSALS": ("aggregator", "LPSFED_AGGREGATOR_QUARANTINE_REFUSALS"),
    "LPSFED_OUTSIDE": ("probe-aggregator", "LPSFED_PROBE_OUTSIDE"),
}


@dataclass(frozen=True)
class Federation:
    """`compose`: the command with project and files; `chosen`: variables that its user gave to it."""

    engine: Engine
    project: str
    compose: tuple[str, ...]
    chosen: Mapping[str, str]

    def volume(self, name: str) -> str:
        return f"{self.project}_{name}"

    def container(self, service: str) -> str:
        """The name of a service's only container."""
        found = containers(self.engine, self.project, service)
        if len(found) != 1:
            raise UnavailableError(f"{self.project}: expected one container of {service}, got {len(found)}")
        return found[0]

    def command(self, service: str) -> list[str]:
        """The arguments that its container was made with."""
        return [str(word) for word in _inspected(self.engine, self.project, service)["Config"]["Cmd"]]

    def bring_up(self, services: Iterable[str], override: Path | None = None, *, anew: bool = False) -> None:
        """These services as the files have them, each made anew where they now say something else; or all of them."""
        files = () if override is None else ("--file", str(override))
        how = ("up", "--detach", "--no-build", "--no-deps", *(("--force-recreate",) if anew else ()))
        self.engine.do(*self.compose, *files, *how, *services, environment=self.chosen)

    def errand(self, volumes: Mapping[str, str], script: str, **said: str) -> None:
        """A few lines of shell beside these volumes (name -> place), by the user of all containers, without network."""
        bound = [word for name, place in volumes.items() for word in ("--volume", f"{self.volume(name)}:{place}")]
        given = [word for name in said for word in ("--env", name)]
        confined = ("--network", "none", "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
        self.engine.do(
            *("docker", "run", "--rm", *confined, *bound, *given, "--entrypoint", "sh", TOOLS, "-euc", script),
            environment=said,
        )


def find(engine: Engine, project: str | None = None) -> Federation:
    """The one that runs, or the one of this project. SettingsError where there is none, or more than one."""
    asked = ("ps", "--filter", f"label={LABEL}.service={NEVER_BROKEN}", "--format", f'{{{{.Label "{LABEL}.project"}}}}')
    there = sorted({name for name in engine.ask(*asked).split() if project in (None, name)})
    if not there:
        raise SettingsError("expected a federation that `docker compose up` has brought up and that runs, got none")
    if len(there) > 1:
        raise SettingsError(f"--project: expected one of the federations that run, {', '.join(there)}, got none")
    (name,) = there
    _require_running(engine, name)
    return Federation(engine, name, (*compose_command(), *_files(engine, name)), _chosen(engine, name))


def _require_running(engine: Engine, project: str) -> None:
    running = ("ps", "--filter", f"label={LABEL}.project={project}", "--format", f'{{{{.Label "{LABEL}.service"}}}}')
    if missing := sorted({*SERVING} - {*engine.ask(*running).split()}):
        raise UnavailableError(f"{project}: expected all parts to run, got none of {', '.join(missing)}")
    if any(len(containers(engine, project, probe)) != 1 for probe in (*PROBES, "report")):
        raise UnavailableError(
            f"{project}: expected a federation whose `up` has ended in its report, got one before it"
        )


def containers(engine: Engine, project: str, service: str) -> list[str]:
    """Names, of those that have ended too; what `run` made beside them does not count."""
    wanted = (f"{LABEL}.project={project}", f"{LABEL}.service={service}", f"{LABEL}.oneoff=False")
    filters = [word for label in wanted for word in ("--filter", f"label={label}")]
    return engine.ask("ps", "--all", "--format", "{{.Names}}", *filters).split()


def _files(engine: Engine, project: str) -> Sequence[str]:
    """Project and files, as Compose has written them on its containers."""
    labels = _inspected(engine, project, NEVER_BROKEN)["Config"]["Labels"]
    folder = Path(labels[f"{LABEL}.project.working_dir"])
    files = [folder / name for name in labels[f"{LABEL}.project.config_files"].split(",")]
    if missing := [str(one) for one in files if not one.is_file()]:
        raise SettingsError(f"{project}: expected the files that it was brought up by, got no {', '.join(missing)}")
    named = [word for one in files for word in ("--file", str(one))]
    return ["--project-name", project, "--project-directory", str(folder), *named]


def _chosen(engine: Engine, project: str) -> dict[str, str]:
    found = {}
    for name, (service, variable) in CHOSEN.items():
        given = dict(one.split("=", 1) for one in _inspected(engine, project, service)["Config"]["Env"])
        if variable in given:
            found[name] = given[variable]
    return found


def _inspected(engine: Engine, project: str, service: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(engine.ask("inspect", containers(engine, project, service)[0]))[0]
    return found
