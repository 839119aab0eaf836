"""Host of several silos in one process, each in memory or on the disk."""

from __future__ import annotations

import mmap
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from client_service.boundary.gate_self_test import digest_folder, package_folder
from client_service.federation.messages import QualityOut, StatusOut
from client_service.runtime.device import pin_threads
from client_service.runtime.memory import return_free_memory
from client_service.settings import ClientSettings
from shared.memory import usable_memory
from simulation.engines.run_folders import (
    Files,
    FolderChanges,
    Marks,
    changes_since,
    mark_files,
    read_files,
    write_changes,
)
from simulation.engines.silo import FittedUpdate, RunTerms, SiloRun

Verb = Literal["begin", "fit", "apply", "finish"]
PACKAGES = ("client_service", "shared", "simulation")
SHARE = 0.5  # of the usable memory that the silos of all hosts on a machine take, where no limit is given
TRIM_AFTER = 64  # silos put on the disk before freed memory goes back to the system
NO_CHANGES = FolderChanges({})


@dataclass(frozen=True)
class SiloOrder:
    """Silo to be hosted on another machine.

    The host replaces the paths in `settings` by its own.
    """

    settings: ClientSettings
    shard: Files
    kept: Files
    catalogue: bytes | None = None

    @property
    def size(self) -> int:
        """Bytes of the shard, by which silos are spread over hosts."""
        return sum(len(content) for content in self.shard.values())


def pack_silo(settings: ClientSettings) -> SiloOrder:
    """Reads a silo's files for a host on another machine."""
    catalogue = None if settings.catalogue is None else settings.catalogue.read_bytes()
    return SiloOrder(settings, read_files(settings.shard), read_files(settings.state_directory), catalogue)


@dataclass(frozen=True)
class SiloReport:
    """State of a silo in a simulation; a silo of another owner gives none.

    seconds: of the processor, for the silo's own work in the call.
    """

    status: StatusOut
    quality: QualityOut
    changes: FolderChanges
    seconds: float = 0.0


@dataclass(frozen=True)
class SiloReply:
    """Result of a call to a silo, with a report in a simulation."""

    client: str
    value: Any
    report: SiloReport | None = None


class HostedSilo:
    """Silo that is in memory, or on the disk until its next call.

    marks: of its state folder, where changes are reported.
    """

    def __init__(self, settings: ClientSettings, marks: Marks | None = None) -> None:
        self.settings, self.marks = settings, marks
        self.silo: SiloRun | None = SiloRun(settings)
        self._begun: tuple[RunTerms, bytes] | None = None
        self._applied = 0
        self._fitted: FittedUpdate | None = None

    def call(self, verb: Verb, arguments: tuple[Any, ...]) -> tuple[Any, float]:
        """Calls a method of the silo; returns its value and its own processor seconds.

        Reading the silo from the disk is not its own work.
        """
        silo = self.silo = self.silo or self._reopen(verb)
        began = time.process_time()
        value = getattr(silo, verb)(*arguments)
        seconds = time.process_time() - began
        if verb == "begin":
            self._begun = arguments[:2]
        if verb in ("begin", "apply"):
            self._applied, self._fitted = value, None
        if verb == "finish":
            self._begun = None
        return value, seconds

    def put_on_disk(self, verb: Verb, arguments: tuple[Any, ...]) -> None:
        """Saves a fitted round, and removes the silo from memory after this call."""
        assert self.silo is not None, "expected a silo in memory"
        if verb == "fit":
            self._fitted = self.silo.save_fitted(*arguments)
        self.silo = None

    def _reopen(self, verb: Verb) -> SiloRun:
        silo = SiloRun(self.settings)
        if verb != "begin" and self._begun is not None:
            silo.begin(*self._begun, self._applied)
            if self._fitted is not None:
                silo.resume_fitted(self._fitted)
        return silo


class SiloHost:
    """Runs its silos one at a time, with this number of threads of linear algebra.

    most_bytes: of this process's memory, beyond which the called silo goes to the disk; None: this host's share of
    half of the machine. hosts: on this machine.
    """

    def __init__(self, threads: int, most_bytes: int | None = None, hosts: int = 1) -> None:
        pin_threads(threads)
        self._most = int(SHARE * usable_memory() / hosts) if most_bytes is None else most_bytes // hosts
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._silos: dict[str, HostedSilo] = {}
        self._put_away = 0

    def open_silo(self, settings: ClientSettings) -> str:
        """Opens a silo in its own folders; returns its name.

        Raises DataError for an unusable shard.
        """
        self._host(HostedSilo(settings))
        return settings.name

    def receive_silo(self, order: SiloOrder) -> str:
        """Opens a silo from its files in a scratch folder; returns its name.

        Each reply has the changes of that folder. Raises DataError for an unusable shard.
        """
        self._scratch = self._scratch or tempfile.TemporaryDirectory(prefix="lpsfed-silos-")
        name, folder = order.settings.name, Path(self._scratch.name) / order.settings.name
        places = {"shard": folder / "shard", "state_directory": folder / "state", "cache_directory": folder / "cache"}
        write_changes(folder / "shard", FolderChanges(order.shard))
        write_changes(folder / "state", FolderChanges(order.kept))
        if order.catalogue is not None:
            places["catalogue"] = folder / "catalogue.txt"
            (folder / "catalogue.txt").write_bytes(order.catalogue)
        (folder / "state").mkdir(exist_ok=True)
        self._host(HostedSilo(order.settings.model_copy(update=places), mark_files(folder / "state")))
        return name

    def call(self, client: str, verb: Verb, arguments: tuple[Any, ...]) -> SiloReply:
        """Calls a method of a silo."""
        hosted = self._silos[client]
        value, seconds = hosted.call(verb, arguments)
        assert hosted.silo is not None, "expected a silo in memory"
        status, quality, changes = hosted.silo.status, hosted.silo.quality, NO_CHANGES
        if self._is_full():
            hosted.put_on_disk(verb, arguments)
            self._count_put_away()
        if hosted.marks is not None:
            changes, hosted.marks = changes_since(hosted.settings.state_directory, hosted.marks)
        return SiloReply(client, value, SiloReport(status, quality, changes, seconds))

    def code(self) -> Mapping[str, str]:
        """Returns digests of the code that the host runs, by package."""
        return digest_engine_code()

    def close(self) -> None:
        """Removes the scratch folder."""
        if self._scratch is not None:
            self._scratch.cleanup()

    def _host(self, hosted: HostedSilo) -> None:
        self._silos[hosted.settings.name] = hosted
        if self._is_full():
            hosted.silo = None
            self._count_put_away()

    def _is_full(self) -> bool:
        return resident_memory() > self._most

    def _count_put_away(self) -> None:
        """Gives freed memory back to the system now and then.

        That takes longer than a small silo's round.
        """
        self._put_away += 1
        if self._put_away % TRIM_AFTER == 0:
            return_free_memory()


def resident_memory() -> int:
    """Measures this process's bytes in memory; 0 if the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * mmap.PAGESIZE
    except OSError:
        return 0


def digest_engine_code() -> Mapping[str, str]:
    """Computes digests of the packages on which the result of a run depends."""
    return {package: digest_folder(package_folder(package)) for package in PACKAGES}
