"""Registry of silos in rows, which all workers of a federation share.

A key in the folder of public keys counts before a row, for operators who register keys by hand, and who had the folder
before they had a database. Each change of a key gets the next version, and the row of a removed key stays: so a worker
that knows the keys of one version reads the later ones alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import anyio
from sqlalchemy import Connection, Row, delete, func, select, update

from aggregator_service.process import LOGGER, run_in_worker
from aggregator_service.storage.database import Database, insert_or_update
from aggregator_service.storage.tables import INVITATIONS, REGISTERED_KEYS
from aggregator_service.storage.write_batches import WriteBatches
from shared.errors import ConflictError, SettingsError, UnavailableError
from shared.protocol.signing.enrolment import registered_keys, require_name
from shared.protocol.signing.keys import PublicKey, public_key, raw_hex
from shared.protocol.signing.silo_registry import INVITED, OpenInvitation, RegistryFolder, RegistryTable

LOOK_SECONDS = 0.05  # between two looks for keys that a worker does not know, however many strangers call
FOLLOW_SECONDS = 1.0  # between two looks for the held streams of removed keys
KEYS = REGISTERED_KEYS.c
VERSION = select(func.coalesce(func.max(KEYS.version), 0))


@dataclass(frozen=True)
class RegistryRows:
    """Registry in rows of a database, beside a folder of keys."""

    database: Database
    folder: RegistryFolder

    @contextmanager
    def reading(self) -> Iterator[RegistryTable]:
        with self.database.reading() as connection:
            yield _OpenRows(connection, self.folder)

    @contextmanager
    def changing(self) -> Iterator[RegistryTable]:
        workers = self.database.workers
        with self.database.recording() as connection:
            if workers is not None:
                workers.lock_registry(connection)
            yield _OpenRows(connection, self.folder)

    def registered_names(self) -> frozenset[str]:
        with self.database.reading() as connection:
            names = connection.scalars(select(KEYS.name).where(KEYS.key.is_not(None))).all()
        return self.folder.registered_names() | frozenset(names)

    def invited_names(self, now: datetime) -> frozenset[str]:
        with self.database.reading() as connection:
            opened = select(INVITATIONS.c.name).where(INVITATIONS.c.expires > now.timestamp())
            return frozenset(connection.scalars(opened))

    def import_invitations(self) -> None:
        """Moves the folder's invitations, made before the start, into rows.

        One that cannot be removed from the folder stays there and does not count: it could be used twice.
        """
        for file in sorted((self.folder.folder / INVITED).glob("*.json")):
            try:
                self._import_invitation(require_name(file.stem))
            except (SettingsError, ConflictError) as error:
                LOGGER.warning("invitation_not_taken", client=file.stem, reason=str(error))

    def _import_invitation(self, name: str) -> None:
        kept = None
        try:
            with self.changing() as held:
                if (kept := self.folder.find_invitation(name)) is None:  # another worker has taken it
                    return
                if not (taken := held.has_key(name)):
                    held.put_invitation(name, kept)
        except UnavailableError:
            if kept is not None:
                self.folder.put_invitation(name, kept)
            raise
        if taken:
            raise ConflictError(f"expected a name without a key, {name!r} has one: remove it, and invite again")


@dataclass(frozen=True)
class _OpenRows:
    """Rows of the registry in one transaction."""

    connection: Connection
    folder: RegistryFolder

    def has_key(self, name: str) -> bool:
        return self.folder.has_key(name) or self._find_row(name) is not None

    def find_key(self, name: str) -> PublicKey | None:
        if self.folder.has_key(name):
            return self.folder.find_key(name)
        found = self._find_row(name)
        return None if found is None else public_key(bytes.fromhex(found))

    def find_keys(self, names: Sequence[str]) -> Mapping[str, PublicKey | None]:
        held = select(KEYS.name, KEYS.key).where(KEYS.name.in_(names), KEYS.key.is_not(None))
        rows: dict[str, str] = {row.name: row.key for row in self.connection.execute(held)}
        files = self.folder.find_keys(names)
        kept = [name for name in names if name in files or name in rows]
        return {name: files[name] if name in files else public_key(bytes.fromhex(rows[name])) for name in kept}

    def has_invitation(self, name: str) -> bool:
        return self.find_invitation(name) is not None

    def find_invitation(self, name: str) -> OpenInvitation | None:
        row = self.connection.execute(select(INVITATIONS).where(INVITATIONS.c.name == name)).one_or_none()
        if row is None:
            return None
        return OpenInvitation(digest=row.digest, expires=datetime.fromtimestamp(row.expires, UTC))

    def put_invitation(self, name: str, kept: OpenInvitation) -> None:
        values = {"digest": kept.digest, "expires": kept.expires.timestamp()}
        stored = insert_or_update(self.connection, INVITATIONS).values(name=name, **values)
        self.connection.execute(stored.on_conflict_do_update(index_elements=["name"], set_=values))
        self._end_in_folder(name)

    def end_invitation(self, name: str) -> None:
        self.connection.execute(delete(INVITATIONS).where(INVITATIONS.c.name == name))
        self._end_in_folder(name)

    def add_key(self, name: str, key: PublicKey) -> None:
        held, given = self.find_key(name), raw_hex(key)
        if self.has_key(name):
            if held is None or raw_hex(held) != given:
                raise ConflictError(f"expected a name without a key, {name!r} has another one: remove it first")
            return
        holder = self.connection.scalar(select(KEYS.name).where(KEYS.key == given))
        for other, one in registered_keys(self.folder.folder).items():
            holder = other if one is not None and raw_hex(one) == given else holder
        if holder is not None:
            raise ConflictError(f"expected a key of its own for {name!r}, {holder!r} has this one")
        values = {"key": given, "version": self._next_version()}
        stored = insert_or_update(self.connection, REGISTERED_KEYS).values(name=name, **values)
        self.connection.execute(stored.on_conflict_do_update(index_elements=["name"], set_=values))

    def remove_key(self, name: str) -> None:
        removed = update(REGISTERED_KEYS).where(KEYS.name == name, KEYS.key.is_not(None))
        self.connection.execute(removed.values(key=None, version=self._next_version()))
        try:
            self.folder.remove_key(name)
        except OSError:
            words = f"expected a key that can be removed, that of {name!r} is a file where this aggregator cannot write"
            raise ConflictError(f"{words}: remove {name}.pub from its folder of keys") from None

    def _find_row(self, name: str) -> str | None:
        found: str | None = self.connection.scalar(select(KEYS.key).where(KEYS.name == name))
        return found

    def _next_version(self) -> int:
        """Returns the version of this change, while no other is made."""
        return int(self.connection.execute(VERSION).scalar_one()) + 1

    def _end_in_folder(self, name: str) -> None:
        if self.folder.has_invitation(name):
            try:
                self.folder.end_invitation(name)
            except OSError as error:
                words = f"expected a folder of invitations that can be written ({error.strerror})"
                raise SettingsError(f"{self.folder.folder}: {words}") from None


class KnownKeys:
    """Registered keys of the rows, as this worker has read them last."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._keys: dict[str, PublicKey] = {}
        self._version = 0
        self._loading = anyio.Lock()
        self._looked_at = 0.0
        self._looks: WriteBatches[None, None] = WriteBatches(self._look)  # a look serves all who came before it
        self._take(self._load(0))

    def find_key(self, name: str) -> PublicKey | None:
        """Returns the key of a name, which is the same object until it changes."""
        return self._keys.get(name)

    async def follow(self, version: int) -> None:
        """Takes the keys of this version, or of a later one."""
        if version <= self._version:
            return
        async with self._loading:
            if version > self._version:
                self._take(await run_in_worker(self._load, self._version))

    async def look_up(self) -> None:
        """Takes the keys that are registered now.

        All who ask while a look is made, and LOOK_SECONDS after the last one, share the next.
        """
        await self._looks.add(None)

    async def keep_read(self) -> None:
        """Takes changes of keys without a call, until cancelled: a held stream makes none."""
        while True:
            await anyio.sleep(FOLLOW_SECONDS)
            try:
                await self.look_up()
            except UnavailableError:
                continue

    async def _look(self, given: Sequence[None]) -> Sequence[None]:
        await anyio.sleep(max(0.0, self._looked_at + LOOK_SECONDS - time.monotonic()))
        self._looked_at = time.monotonic()
        await self.follow(await run_in_worker(self._read_version))
        return [None] * len(given)

    def _read_version(self) -> int:
        with self._database.reading() as connection:
            return int(connection.execute(VERSION).scalar_one())

    def _load(self, after: int) -> Sequence[Row[Any]]:
        """Reads the keys that have changed after a version, oldest first."""
        changed = select(REGISTERED_KEYS).where(KEYS.version > after).order_by(KEYS.version)
        with self._database.reading() as connection:
            return connection.execute(changed).all()

    def _take(self, changed: Sequence[Row[Any]]) -> None:
        for row in changed:
            if row.key is None:
                self._keys.pop(row.name, None)
            else:
                self._keys[row.name] = public_key(bytes.fromhex(row.key))
            self._version = row.version
