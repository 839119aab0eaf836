"""Host of several silos in one process, each with its files in a scratch folder."""

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
    """Silo to be hosted; the host replaces the paths in `settings` by its own."""

    settings: ClientSettings
    shard: Files
    kept: Files
    catalogue: bytes | None = None

    @property
    def size(self) -> int:
        """Bytes of the shard, by which silos are spread over hosts."""
        return sum(len(content) for content in self.shard.values())


@dataclass(frozen=True)
class SiloReport:
    """State of a silo in a simulation; a silo of another owner gives none."""

    status: StatusOut
    quality: QualityOut
    changes: FolderChanges


@dataclass(frozen=True)
class SiloReply:
    """Result of a call to a silo, with a report in a simulation."""

    client: str
    value: Any
    report: SiloReport | None = None


class SiloHost:
    """Runs its silos one at a time, with this number of threads of linear algebra."""

    def __init__(self, threads: int) -> None:
        pin_threads(threads)
        self._scratch = tempfile.TemporaryDirectory(prefix="lpsfed-silos-")
        self._silos: dict[str, SiloRun] = {}
        self._marks: dict[str, Marks] = {}

    def open_silo(self, order: SiloOrder) -> str:
        """Opens a silo from its files; returns its name.

        Raises DataError for an unusable shard.
        """
        name, folder = order.settings.name, Path(self._scratch.name) / order.settings.name
        places = {"shard": folder / "shard", "state_directory": folder / "state", "cache_directory": None}
        write_changes(folder / "shard", FolderChanges(order.shard))
        write_changes(folder / "state", FolderChanges(order.kept))
        if order.catalogue is not None:
            places["catalogue"] = folder / "catalogue.txt"
            (folder / "catalogue.txt").write_bytes(order.catalogue)
        (folder / "state").mkdir(exist_ok=True)
        self._silos[name] = SiloRun(order.settings.model_copy(update=places))
        self._marks[name] = mark_files(folder / "state")
        return name

    def call(self, client: str, verb: Verb, arguments: tuple[Any, ...]) -> SiloReply:
        """Calls a method of a silo."""
        silo, folder = self._silos[client], Path(self._scratch.name) / client / "state"
        value = getattr(silo, verb)(*arguments)
        changes, self._marks[client] = changes_since(folder, self._marks[client])
        return SiloReply(client, value, SiloReport(silo.status, silo.quality, changes))

    def code(self) -> Mapping[str, str]:
        """Returns digests of the code that the host runs, by package."""
        return digest_engine_code()

    def close(self) -> None:
        """Removes the scratch folder."""
        self._scratch.cleanup()


def digest_engine_code() -> Mapping[str, str]:
    """Computes digests of the packages on which the result of a run depends."""
    return {package: digest_folder(package_folder(package)) for package in PACKAGES}
