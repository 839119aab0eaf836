"""Registry of silos: public keys, and open invitations by which a silo registers one.

It lies in a folder, or in rows of a database that several aggregators share. The rules are the same.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

from cryptography.exceptions import InvalidSignature
from pydantic import AwareDatetime, ValidationError

from shared.errors import AuthenticationError, ConflictError, NotFoundError, ProtocolError, SettingsError
from shared.files import PRIVATE, replace_file
from shared.message import Message
from shared.protocol.signing.enrolment import (
    lock_folder,
    public_file,
    register_key,
    registered_key,
    registered_names,
    remove_key,
    require_name,
)
from shared.protocol.signing.invitation import CODE_BYTES, EnrolmentIn, Hex32, code_digest, prove, proven_bytes
from shared.protocol.signing.keys import PublicKey, public_key, raw_hex

INVITED = "invited"  # folder of open invitations, in the folder of registered keys
REFUSED = "expected the code of an open invitation for this name: ask the operator for another one"


class OpenInvitation(Message):
    """Invitation as the aggregator stores it. `digest`: sha256 of the code."""

    digest: Hex32
    expires: AwareDatetime


class RegistryTable(Protocol):
    """Keys and open invitations, as one reader or one change sees them."""

    def has_key(self, name: str) -> bool:
        """Tells whether a name is taken, also by a key that cannot be read."""

    def find_key(self, name: str) -> PublicKey | None: ...

    def find_keys(self, names: Sequence[str]) -> Mapping[str, PublicKey | None]:
        """Finds the keys of several names; None for one that cannot be read.

        A name without a key is left out.
        """

    def has_invitation(self, name: str) -> bool:
        """Tells whether a name has an invitation, also an expired or unreadable one."""

    def find_invitation(self, name: str) -> OpenInvitation | None: ...

    def put_invitation(self, name: str, kept: OpenInvitation) -> None:
        """Stores an invitation in place of an earlier one of this name."""

    def end_invitation(self, name: str) -> None: ...

    def add_key(self, name: str, key: PublicKey) -> None:
        """Registers a key.

        Raises ConflictError if the name has another key, or the key another name.
        """

    def remove_key(self, name: str) -> None: ...


class RegistryStore(Protocol):
    """Place of a registry.

    A change is whole or not made, and alone: no other is made meanwhile. Raises SettingsError if it cannot be
    written.
    """

    def reading(self) -> AbstractContextManager[RegistryTable]: ...

    def changing(self) -> AbstractContextManager[RegistryTable]: ...

    def registered_names(self) -> frozenset[str]: ...

    def invited_names(self, now: datetime) -> frozenset[str]: ...


@dataclass(frozen=True)
class SiloRegistry:
    """Registry of silos in one place."""

    store: RegistryStore

    def registered_names(self) -> frozenset[str]:
        """Returns the names that have a key."""
        return self.store.registered_names()

    def known_names(self, now: datetime) -> tuple[str, ...]:
        """Lists all names with a key or an open invitation, sorted."""
        return tuple(sorted(self.store.registered_names() | self.store.invited_names(now)))

    def list_keys(self, after: str, limit: int) -> tuple[Mapping[str, PublicKey | None], int]:
        """Lists keys by name, the first ones after a name, and counts all of them."""
        names = self.store.registered_names()
        with self.store.reading() as held:
            return held.find_keys(sorted(name for name in names if name > after)[:limit]), len(names)

    def require_without_key(self, name: str) -> None:
        """Raises ConflictError for a name that has a key already.

        SettingsError for what is no client's name.
        """
        require_name(name)
        with self.store.reading() as held:
            _require_free(name, held)

    def open_invitation(self, name: str, days: float, now: datetime | None = None) -> tuple[str, datetime]:
        """Stores a new invitation for a name; returns its code and expiry.

        It replaces an earlier one. Raises ConflictError for a name that has a key already, SettingsError for what is
        no client's name.
        """
        self.require_without_key(name)
        code, expires = secrets.token_urlsafe(CODE_BYTES), (now or datetime.now(UTC)) + timedelta(days=days)
        with self.store.changing() as held:
            _require_free(name, held)  # the earlier invitation may have been used meanwhile
            held.put_invitation(name, OpenInvitation(digest=code_digest(code), expires=expires))
        return code, expires

    def remove_silo(self, name: str) -> None:
        """Removes a silo's key and its open invitation.

        Raises NotFoundError if it had neither.
        """
        require_name(name)
        with self.store.reading() as held:
            if not held.has_key(name) and not held.has_invitation(name):
                raise NotFoundError(f"expected a registered name, got {name!r}")
        with self.store.changing() as held:  # an enrolment under way ends before, and no other begins meanwhile
            held.end_invitation(name)  # before the key: else the code could register a key again
            held.remove_key(name)

    def redeem_invitation(self, message: EnrolmentIn, now: datetime, aggregator: str) -> None:
        """Registers the key of an invited silo, durably, and uses the invitation up.

        The same key again changes nothing, so that a silo without an answer may ask again, after the invitation has
        expired too: it has signed the message. Raises AuthenticationError, in the same words whatever is wrong with
        the proof, and ConflictError if the name has another key or the key another name. aggregator: its own public
        key, in hexadecimal.
        """
        key = _parse_key(message)
        said = proven_bytes(message.name, message.key, aggregator, message.nonce)
        try:
            key.verify(bytes.fromhex(message.signature), said + message.proof.encode())
        except InvalidSignature:
            raise AuthenticationError(REFUSED) from None
        with self.store.reading() as held:
            has_key, invited = _has_key(message, held), held.has_invitation(message.name)
            kept = held.find_invitation(message.name)
        if has_key and not invited:
            return
        if not has_key and not _is_valid_proof(kept, said, message.proof, now):
            self._forget_expired(message.name, kept, now)
            raise AuthenticationError(REFUSED)  # before the lock: a caller without a code must not take it
        with self.store.changing() as held:  # looked at once more: it may have been withdrawn meanwhile
            if not _has_key(message, held):
                if not _is_valid_proof(held.find_invitation(message.name), said, message.proof, now):
                    raise AuthenticationError(REFUSED)
                held.add_key(message.name, key)
            held.end_invitation(message.name)

    def _forget_expired(self, name: str, kept: OpenInvitation | None, now: datetime) -> None:
        """Deletes an expired invitation, so that it stays expired if the clock goes back."""
        if kept is None or now < kept.expires:
            return
        with self.store.changing() as held:
            if (kept := held.find_invitation(name)) is not None and now >= kept.expires:
                held.end_invitation(name)


@dataclass(frozen=True)
class RegistryFolder:
    """Registry in a folder: a file for each key, and one for each open invitation."""

    folder: Path

    @contextmanager
    def reading(self) -> Iterator[RegistryTable]:
        yield self

    @contextmanager
    def changing(self) -> Iterator[RegistryTable]:
        with lock_folder(self.folder / INVITED):
            yield self

    def registered_names(self) -> frozenset[str]:
        return registered_names(self.folder)

    def invited_names(self, now: datetime) -> frozenset[str]:
        names = (path.stem for path in (self.folder / INVITED).glob("*.json"))
        found = {name: self.find_invitation(name) for name in names}
        return frozenset(name for name, kept in found.items() if kept is not None and now < kept.expires)

    def has_key(self, name: str) -> bool:
        return public_file(name, self.folder).exists()

    def find_key(self, name: str) -> PublicKey | None:
        return registered_key(name, self.folder)

    def find_keys(self, names: Sequence[str]) -> Mapping[str, PublicKey | None]:
        return {name: self.find_key(name) for name in names if self.has_key(name)}

    def has_invitation(self, name: str) -> bool:
        return self._open_file(name).exists()

    def find_invitation(self, name: str) -> OpenInvitation | None:
        try:
            return OpenInvitation.model_validate_json(self._open_file(name).read_bytes())
        except (OSError, ValidationError):
            return None

    def put_invitation(self, name: str, kept: OpenInvitation) -> None:
        try:
            replace_file(self._open_file(name), kept.model_dump_json().encode(), PRIVATE)
        except OSError as error:
            raise SettingsError(f"{self.folder}: expected a writable path ({error.strerror})") from None

    def end_invitation(self, name: str) -> None:
        self._open_file(name).unlink(missing_ok=True)

    def add_key(self, name: str, key: PublicKey) -> None:
        register_key(name, key, self.folder)

    def remove_key(self, name: str) -> None:
        if self.has_key(name):
            remove_key(name, self.folder)

    def _open_file(self, name: str) -> Path:
        return public_file(name, self.folder / INVITED).with_suffix(".json")


def folder_registry(folder: Path) -> SiloRegistry:
    """Returns the registry in a folder."""
    return SiloRegistry(RegistryFolder(folder))


def _require_free(name: str, held: RegistryTable) -> None:
    if held.has_key(name):
        raise ConflictError(f"expected a name without a key, {name!r} has one: remove it first")


def _has_key(message: EnrolmentIn, held: RegistryTable) -> bool:
    """Tells whether the name has this very key."""
    key = held.find_key(message.name)
    return key is not None and raw_hex(key) == message.key


def _parse_key(message: EnrolmentIn) -> PublicKey:
    try:
        return public_key(bytes.fromhex(message.key))
    except (SettingsError, ValueError):
        raise ProtocolError("key: expected an Ed25519 public key in hexadecimal, got another") from None


def _is_valid_proof(kept: OpenInvitation | None, said: bytes, proof: str, now: datetime) -> bool:
    """Tells whether a proof is of an open invitation's code."""
    kept = kept or OpenInvitation(digest="0" * 64, expires=now)
    return hmac.compare_digest(prove(kept.digest, said), proof) and now < kept.expires
