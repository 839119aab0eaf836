"""The members file that this silo pins, or trust on first use -> whose answers and whose keys are believed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from client_service.secure.memory import RoundMemory
from shared.errors import PrivacyError, SettingsError
from shared.protocol.secure.messages import Roster
from shared.protocol.signing.keys import PublicKey, public_key, raw_hex
from shared.protocol.signing.registry import Registry, read_registry

AGGREGATOR = ""  # no client has this name


class KnownMembers:
    """Of one silo. The file is read again when it has changed: a silo that joins needs no restart of the others.

    `file`: None where the silo trusts on first use: then each key is pinned in the memory when it is first seen.
    """

    def __init__(self, file: Path | None, memory: RoundMemory) -> None:
        """SettingsError for a file that is none of members."""
        self._file, self._memory = file, memory
        self._stamp: tuple[int, int] | None = None
        self._registry: Registry | None = None
        self._read()

    def _read(self) -> Registry | None:
        """What the file holds now; SettingsError where it holds something else."""
        if self._file is None:
            return None
        try:
            found = self._file.stat()
        except OSError as error:
            raise SettingsError(f"{self._file}: expected a file of members ({error.strerror})") from None
        if self._registry is None or (found.st_mtime_ns, found.st_size) != self._stamp:
            self._registry = read_registry(self._file)
            self._stamp = found.st_mtime_ns, found.st_size
        return self._registry

    def aggregator(self, claimed: str | None = None) -> PublicKey:
        """Of the aggregator. `claimed`: what an answer names, pinned if there is none yet. PrivacyError for neither."""
        if (registry := self._read()) is not None:
            return registry.aggregator
        if AGGREGATOR not in self._memory.pinned:
            if claimed is None:
                raise PrivacyError("expected an answer that the aggregator has signed, before its key is known")
            self._memory.pin(AGGREGATOR, claimed)
        return public_key(bytes.fromhex(self._memory.pinned[AGGREGATOR]))

    def of(self, roster: Roster, own: str, own_key: PublicKey) -> Mapping[str, PublicKey]:
        """The members that this silo believes in, for a roster that has come.

        PrivacyError where the file has another key of this silo itself: then it is another federation's.
        """
        if (registry := self._read()) is None:
            return self._pinned_keys(roster)
        if own in registry.clients and raw_hex(registry.clients[own]) != raw_hex(own_key):
            raise PrivacyError(f"members: expected this client's own public key under {own!r}, got another")
        return registry.clients

    def _pinned_keys(self, roster: Roster) -> Mapping[str, PublicKey]:
        for one in roster.members:
            if one.client not in self._memory.pinned:
                self._memory.pin(one.client, one.identity)
        pinned = self._memory.pinned
        return {name: public_key(bytes.fromhex(pinned[name])) for name in roster.names}
