"""Containers on this machine -> the one federation of a docker-compose.yml that runs there, as it was brought up."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.errors import SettingsError, UnavailableError
from simulation.breaks.engine import Engine, compose_command

TOOLS = "lpsfed/tools:0.1.0"
LABEL = "com.docker.compose"
NEVER_BROKEN = "gateway"  # no break changes it: it knows by which files the federation was brought up
PARTS = "LPSFED_PROBE_EXPECT"  # the report's variable with the names of all parts that serve
# What its user chose when bringing it up -> where it stands in a container, and what it is without a choice.
CHOSEN = {
    "LPSFED_SECURE": ("aggregator", "LPSFED_AGGREGATOR_SECURE"),
    "LPSFED_QUARANTINE_REFUSALS": ("aggregator", "LPSFED_AGGREGATOR_QUARANTINE_REFUSALS"),
    "LPSFED_OUTSIDE": ("probe-aggregator", "LPSFED_PROBE_OUTSIDE"),
}


@dataclass(frozen=True)
class Federation:
    """`compose`: the command with project and files; `chosen`: variables that its user gave to it; `parts`: the names
    of the aggregator, the clients and the gateways before them."""

    engine: Engine
    project: str
    compose: tuple[str, ...]
    chosen: Mapping[str, str]
    parts: tuple[str, ...]

    @property
    def silos(self) -> int:
        return sum(name.startswith("client-") for name in self.parts)

    @property
    def probes(self) -> tuple[str, ...]:
        return tuple(f"probe-{name}" for name in self.parts)

    @property
    def writers(self) -> tuple[str, ...]:
        """The parts that have a state: all but the gateways."""
        return tuple(name for name in self.parts if not name.startswith("gateway"))

    @property
    def volumes(self) -> tuple[str, ...]:
        """The volumes with states and evidence."""
        numbers = range(1, self.silos + 1)
        silos = (f"{kind}-{number}" for kind in ("state", "evidence") for number in numbers)
        return ("state-aggregator", "evidence", *silos)

    def volume(self, name: str) -> str:
        return f"{self.project}_{name}"

    def container(self, service: str) -> str:
        """The name of a service's only container."""
        names = containers(self.engine, self.project, service)
        if len(names) != 1:
            raise UnavailableError(f"{self.project}: expected one container of {service}, got {len(names)}")
        return names[0]

    def command(self, service: str) -> list[str]:
        """The arguments that its container was made with."""
        return [str(word) for word in _inspect(self.engine, self.project, service)["Config"]["Cmd"]]

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
    parts = _parts(engine, name)
    _require_running(engine, name, parts)
    return Federation(engine, name, (*compose_command(), *_files(engine, name)), _chosen_variables(engine, name), parts)


def _parts(engine: Engine, project: str) -> tuple[str, ...]:
    """The names of all parts that serve, as the report of this federation is told them."""
    if len(containers(engine, project, "report")) == 1:
        names = _variables(engine, project, "report").get(PARTS, "")
        if names:
            return tuple(names.split(","))
    raise _before_its_report(project)


def _require_running(engine: Engine, project: str, parts: Sequence[str]) -> None:
    running = ("ps", "--filter", f"label={LABEL}.project={project}", "--format", f'{{{{.Label "{LABEL}.service"}}}}')
    if missing := sorted({*parts} - {*engine.ask(*running).split()}):
        raise UnavailableError(f"{project}: expected all parts to run, got none of {', '.join(missing)}")
    if any(len(containers(engine, project, f"probe-{name}")) != 1 for name in parts):
        raise _before_its_report(project)


def _before_its_report(project: str) -> UnavailableError:
    return UnavailableError(f"{project}: expected a federation whose `up` has ended in its report, got one before it")


def containers(engine: Engine, project: str, service: str) -> list[str]:
    """Names, of those that have ended too; what `run` made beside them does not count."""
    wanted = (f"{LABEL}.project={project}", f"{LABEL}.service={service}", f"{LABEL}.oneoff=False")
    filters = [word for label in wanted for word in ("--filter", f"label={label}")]
    return engine.ask("ps", "--all", "--format", "{{.Names}}", *filters).split()


def _files(engine: Engine, project: str) -> Sequence[str]:
    """Project and files, as Compose has written them on its containers."""
    labels = _inspect(engine, project, NEVER_BROKEN)["Config"]["Labels"]
    folder = Path(labels[f"{LABEL}.project.working_dir"])
    files = [folder / name for name in labels[f"{LABEL}.project.config_files"].split(",")]
    if missing := [str(one) for one in files if not one.is_file()]:
        raise SettingsError(f"{project}: expected the files that it was brought up by, got no {', '.join(missing)}")
    named = [word for one in files for word in ("--file", str(one))]
    return ["--project-name", project, "--project-directory", str(folder), *named]


def _chosen_variables(engine: Engine, project: str) -> dict[str, str]:
    values = {name: _variables(engine, project, service).get(variable) for name, (service, variable) in CHOSEN.items()}
    return {name: value for name, value in values.items() if value is not None}


def _variables(engine: Engine, project: str, service: str) -> dict[str, str]:
    """The environment that its container was made with."""
    return dict(line.split("=", 1) for line in _inspect(engine, project, service)["Config"]["Env"])


def _inspect(engine: Engine, project: str, service: str) -> dict[str, Any]:
    described: dict[str, Any] = json.loads(engine.ask("inspect", containers(engine, project, service)[0]))[0]
    return described
