"""Several silos in one process, each with its files in a scratch folder of that process's machine."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from client_service.boundary.gate_self_test import digest_folder, package_folder
from client_service.federation.messages import QualityOut, StatusOut
from client_service.runtime.device import pin_threads
from client_service.settings import ClientSettings
from simulation.engines.run_folders import Files, FolderChanges, Marks, changes_since, mark_files, write_changes
from simulation.engines.silo import SiloRun

Verb = Literal["begin", "fit", "apply", "finish"]
PACKAGES = ("client_service", "shared", "simulation")


@dataclass(frozen=True)
class SiloOrder:
    """A silo to be hosted. `settings`: of its client; the paths in it are those of the host's own folders then."""

    settings: ClientSettings
    shard: Files
    kept: Files
    catalogue: bytes | None = None

    @property
    def size(self) -> int:
        """Bytes of its shard, by which the work is shared out."""
        return sum(len(content) for content in self.shard.values())


@dataclass(frozen=True)
class SiloReport:
    """Where a silo stands, for the simulation that owns it: no silo of others gives one."""

    status: StatusOut
    quality: QualityOut
    changes: FolderChanges


@dataclass(frozen=True)
class SiloReply:
    """What a verb gave; and of a simulation's own silo its report."""

    client: str
    value: Any
    report: SiloReport | None = None


class SiloHost:
    """Runs its silos one at a time, with so many threads of linear algebra."""

    def __init__(self, threads: int) -> None:
        pin_threads(threads)
        self._scratch = tempfile.TemporaryDirectory(prefix="lpsfed-silos-")
        self._silos: dict[str, SiloRun] = {}
        self._extra_fields: dict[str, Marks] = {}

    def take_in(self, order: SiloOrder) -> str:
        """Open a silo from its files. Its name. DataError for a shard of no use."""
        name, folder = order.settings.name, Path(self._scratch.name) / order.settings.name
        places = {"shard": folder / "shard", "state_directory": folder / "state", "cache_directory": None}
        write_changes(folder / "shard", FolderChanges(order.shard))
        write_changes(folder / "state", FolderChanges(order.kept))
        if order.catalogue is not None:
            places["catalogue"] = folder / "catalogue.txt"
            (folder / "catalogue.txt").write_bytes(order.catalogue)
        (folder / "state").mkdir(exist_ok=True)
        self._silos[name] = SiloRun(order.settings.model_copy(update=places))
        self._extra_fields[name] = mark_files(folder / "state")
        return name

    def ask(self, client: str, verb: Verb, arguments: tuple[Any, ...]) -> SiloReply:
        """Let a silo do one thing."""
        silo, folder = self._silos[client], Path(self._scratch.name) / client / "state"
        value = getattr(silo, verb)(*arguments)
        changes, self._extra_fields[client] = changes_since(folder, self._extra_fields[client])
        return SiloReply(client, value, SiloReport(silo.status, silo.quality, changes))

    def code(self) -> Mapping[str, str]:
        """Digests of the code that it runs, package by package."""
        return code_of_engine()

    def close(self) -> None:
        """Remove the scratch folder."""
        self._scratch.cleanup()


def code_of_engine() -> Mapping[str, str]:
    """Digests of the packages that decide what a run gives."""
    return {package: digest_folder(package_folder(package)) for package in PACKAGES}
