"""Compose federation that runs on this machine, found by its containers' labels."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.errors import SettingsError, UnavailableError
from simulation.breaks.engine import Engine, compose_command
from simulation.partitioning.sources import number_silos

TOOLS = "lpsfed/tools:0.2.0"
LABEL = "com.docker.compose"
REFERENCE_SERVICE = "gateway"  # no break changes it: it knows by which files the federation was brought up
PARTS = "LPSFED_PROBE_EXPECT"  # the report's variable with the names of all parts that serve
# Variable that the user may set for `docker compose` -> service and variable of the container that has its value.
CHOICES = {
    "LPSFED_SECURE": ("aggregator", "LPSFED_AGGREGATOR_SECURE"),
    "LPSFED_QUARANTINE_REFUSALS": ("aggregator", "LPSFED_AGGREGATOR_QUARANTINE_REFUSALS"),
    "LPSFED_LOG_LEVEL": ("aggregator", "LPSFED_AGGREGATOR_LOG_LEVEL"),
    "LPSFED_OUTSIDE": ("probe-aggregator", "LPSFED_PROBE_OUTSIDE"),
}


@dataclass(frozen=True)
class ComposeFederation:
    """Running federation of a Compose file.

    compose: the command with project and files. choices: variables that its user has set. parts: names of the
    aggregator, the clients and their gateways.
    """

    engine: Engine
    project: str
    compose: tuple[str, ...]
    choices: Mapping[str, str]
    parts: tuple[str, ...]

    @property
    def silos(self) -> int:
        """Number of clients."""
        return sum(name.startswith("client-") for name in self.parts)

    @property
    def probes(self) -> tuple[str, ...]:
        """Names of all probes' services."""
        return tuple(f"probe-{name}" for name in self.parts)

    @property
    def writers(self) -> tuple[str, ...]:
        """Services that keep a state: all services except the gateways."""
        return tuple(name for name in self.parts if not name.startswith("gateway"))

    @property
    def volumes(self) -> tuple[str, ...]:
        """Volumes with states and evidence."""
        silos = (f"{kind}-{number}" for kind in ("state", "evidence") for number in number_silos(self.silos))
        return ("state-aggregator", "evidence", *silos)

    def volume_name(self, name: str) -> str:
        """Returns the engine's name of a volume of the file."""
        return f"{self.project}_{name}"

    def container_name(self, service: str) -> str:
        """Returns the name of a service's only container."""
        names = container_names(self.engine, self.project, service)
        if len(names) != 1:
            raise UnavailableError(f"{self.project}: expected one container of {service}, got {len(names)}")
        return names[0]

    def container_command(self, service: str) -> list[str]:
        """Returns the arguments with which a service's container was made."""
        return [str(word) for word in _inspect_container(self.engine, self.project, service)["Config"]["Cmd"]]

    def bring_up(self, services: Iterable[str], override: Path | None = None, *, anew: bool = False) -> None:
        """Starts services as the files describe them. Compose recreates those that have changed."""
        files = () if override is None else ("--file", str(override))
        how = ("up", "--detach", "--no-build", "--no-deps", *(("--force-recreate",) if anew else ()))
        self.engine.run_command(*self.compose, *files, *how, *services, environment=self.choices)

    def run_script(self, volumes: Mapping[str, str], script: str, **variables: str) -> None:
        """Runs shell lines beside these volumes (name: place), as the containers' user, without network."""
        mounts = [word for name, place in volumes.items() for word in ("--volume", f"{self.volume_name(name)}:{place}")]
        names = [word for name in variables for word in ("--env", name)]
        limits = ("--network", "none", "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
        self.engine.run_command(
            *("docker", "run", "--rm", *limits, *mounts, *names, "--entrypoint", "sh", TOOLS, "-euc", script),
            environment=variables,
        )


def find_federation(engine: Engine, project: str | None = None) -> ComposeFederation:
    """Finds the running federation, or the one of this project.

    Raises SettingsError if none or several run, and UnavailableError if parts do not run or `up` has not ended.
    """
    gateways = ("ps", "--filter", f"label={LABEL}.service={REFERENCE_SERVICE}")
    listing = (*gateways, "--format", f'{{{{.Label "{LABEL}.project"}}}}')
    projects = sorted({name for name in engine.read_output(*listing).split() if project in (None, name)})
    if not projects:
        raise SettingsError("expected a running federation that `docker compose up` has started, got none")
    if len(projects) > 1:
        raise SettingsError(f"--project: expected one of the federations that run, {', '.join(projects)}, got none")
    (name,) = projects
    parts = _part_names(engine, name)
    _require_running(engine, name, parts)
    return ComposeFederation(
        engine, name, (*compose_command(), *_compose_flags(engine, name)), _user_choices(engine, name), parts
    )


def _part_names(engine: Engine, project: str) -> tuple[str, ...]:
    """Returns the names of all serving parts, from the environment of the report's container."""
    if len(container_names(engine, project, "report")) == 1:
        names = _container_environment(engine, project, "report").get(PARTS, "")
        if names:
            return tuple(names.split(","))
    raise _unreported_error(project)


def _require_running(engine: Engine, project: str, parts: Sequence[str]) -> None:
    running = ("ps", "--filter", f"label={LABEL}.project={project}", "--format", f'{{{{.Label "{LABEL}.service"}}}}')
    if missing := sorted({*parts} - {*engine.read_output(*running).split()}):
        raise UnavailableError(f"{project}: expected all parts to run, got none of {', '.join(missing)}")
    if any(len(container_names(engine, project, f"probe-{name}")) != 1 for name in parts):
        raise _unreported_error(project)


def _unreported_error(project: str) -> UnavailableError:
    return UnavailableError(f"{project}: expected a federation whose `up` has ended in its report, got one before it")


def container_names(engine: Engine, project: str, service: str) -> list[str]:
    """Lists a service's containers, also ended ones, without those of `docker compose run`."""
    labels = (f"{LABEL}.project={project}", f"{LABEL}.service={service}", f"{LABEL}.oneoff=False")
    filters = [word for label in labels for word in ("--filter", f"label={label}")]
    return engine.read_output("ps", "--all", "--format", "{{.Names}}", *filters).split()


def _compose_flags(engine: Engine, project: str) -> Sequence[str]:
    """Returns Compose's options for project and files, from the labels of its containers."""
    labels = _inspect_container(engine, project, REFERENCE_SERVICE)["Config"]["Labels"]
    folder = Path(labels[f"{LABEL}.project.working_dir"])
    files = [folder / name for name in labels[f"{LABEL}.project.config_files"].split(",")]
    if missing := [str(file) for file in files if not file.is_file()]:
        raise SettingsError(f"{project}: expected the Compose files that started it, got no {', '.join(missing)}")
    flags = [word for file in files for word in ("--file", str(file))]
    return ["--project-name", project, "--project-directory", str(folder), *flags]


def _user_choices(engine: Engine, project: str) -> dict[str, str]:
    values = {
        name: _container_environment(engine, project, service).get(variable)
        for name, (service, variable) in CHOICES.items()
    }
    return {name: value for name, value in values.items() if value is not None}


def _container_environment(engine: Engine, project: str, service: str) -> dict[str, str]:
    """Returns the environment with which a service's container was made."""
    return dict(line.split("=", 1) for line in _inspect_container(engine, project, service)["Config"]["Env"])


def _inspect_container(engine: Engine, project: str, service: str) -> dict[str, Any]:
    described: dict[str, Any] = json.loads(engine.read_output("inspect", container_names(engine, project, service)[0]))[
        0
    ]
    return described
