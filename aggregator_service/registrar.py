"""Registrar of silos: their keys and invitations, and who changes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ParamSpec, TypeVar

from aggregator_service.process import SerialWorker, run_in_worker
from aggregator_service.signatures import RegisteredKeys
from aggregator_service.storage.database import Database
from aggregator_service.storage.registry_rows import KnownKeys, RegistryRows
from shared.protocol.signing.keys import PublicKey
from shared.protocol.signing.silo_registry import RegistryFolder, SiloRegistry

P = ParamSpec("P")
T = TypeVar("T")


class Registrar:
    """Registry of silos, and the keys of it that this process knows."""

    def __init__(self, database: Database, folder: Path) -> None:
        held = RegistryFolder(folder)
        self._worker = SerialWorker()  # strangers may call: all together they take one session of the database
        if not database.on_server:
            self.registry, self.keys = SiloRegistry(held), RegisteredKeys(folder)
            return
        rows = RegistryRows(database, held)
        rows.import_invitations()
        self.registry, self.keys = SiloRegistry(rows), RegisteredKeys(folder, KnownKeys(database))

    async def registered_names(self) -> frozenset[str]:
        """Returns the names with a registered public key, which may join."""
        return await run_in_worker(self.registry.registered_names)

    async def list_keys(self, after: str, limit: int) -> tuple[Mapping[str, PublicKey | None], int]:
        """Lists keys by name, the first ones after a name, and counts all of them."""
        return await run_in_worker(self.registry.list_keys, after, limit)

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs a function of the registry, one at a time.

        This process then knows the keys that it has changed.
        """
        found = await self._worker.run_in_worker(function, *args, **kwargs)
        await self.keys.look_up()
        return found
