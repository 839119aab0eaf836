"""Verification of request signatures against the registered keys, each nonce once.

Requests that can be refused without a key are refused first, and reveal nothing about who is registered. Then the
signature is checked: an unknown name is refused in the same words, and after the same work, as a wrong key. Only the
holder of the key learns how the clocks differ, and only its nonces are stored.
"""

from __future__ import annotations

import os
import time
from collections.abc import Coroutine, Iterable
from pathlib import Path

from aggregator_service.process import LOGGER, Clock
from aggregator_service.storage.nonces import Nonces
from aggregator_service.storage.registry_rows import KnownKeys
from aggregator_service.storage.shared_nonces import SharedNonces
from shared.errors import AuthenticationError, ClockError, ReplayError, SettingsError
from shared.protocol.signing import requests
from shared.protocol.signing.enrolment import public_file
from shared.protocol.signing.keys import PublicKey, new_key, read_public
from shared.protocol.signing.requests import RequestTarget, SignatureClaim

REPLAYED = "signature: expected a new nonce, got one of an earlier request"
SIGNER = "the private key whose public key is registered under this name"
UNKNOWN = f"signature: expected this request signed by {SIGNER}, got another"
Version = tuple[int, int, int]


class RegisteredKeys:
    """Public keys of the registered clients.

    rows: keys that all workers share; a file of the same name counts before them.
    """

    def __init__(self, folder: Path, rows: KnownKeys | None = None) -> None:
        self._folder, self._prefix, self._rows = folder, f"{folder}/", rows
        self._held: dict[str, tuple[Version, PublicKey | None]] = {}

    def registered_key(self, name: str) -> PublicKey | None:
        """Returns the client's key, the same object until it changes; None without one.

        An invalid file is logged.
        """
        try:
            status = os.stat(f"{self._prefix}{name}.pub")  # of `public_file`, without a path's parts: each call asks
        except FileNotFoundError:
            self._held.pop(name, None)
            return None if self._rows is None else self._rows.find_key(name)
        version = status.st_ino, status.st_size, status.st_mtime_ns
        held = self._held.get(name)
        if held is None or held[0] != version:
            held = self._held[name] = version, _read_key(name, public_file(name, self._folder))
        return held[1]

    async def follow(self, version: int) -> None:
        """Takes the keys of this version of the rows."""
        if self._rows is not None:
            await self._rows.follow(version)

    def list_jobs(self) -> list[Coroutine[None, None, None]]:
        """Lists the endless jobs, which take removed keys for held streams."""
        return [] if self._rows is None else [self._rows.keep_read()]

    async def look_up(self) -> None:
        """Takes the keys that other workers have registered or removed until now."""
        if self._rows is not None:
            await self._rows.look_up()


def _read_key(name: str, file: Path) -> PublicKey | None:
    try:
        return read_public(file)
    except SettingsError as error:
        LOGGER.error("key_refused", client=name, reason=str(error))
        return None


class Signatures:
    """Verifier of signatures, which count for `seconds` before and after their time.

    The clock is the wall's, by which callers sign, and not the rounds', which a test may set.
    """

    def __init__(
        self, keys: RegisteredKeys, nonces: Nonces | SharedNonces, *, seconds: int, clock: Clock = time.time
    ) -> None:
        self._keys, self._nonces, self._seconds, self._clock = keys, nonces, seconds, clock
        self._unregistered_key = new_key().public_key()

    def verify_request(self, target: RequestTarget, headers: Iterable[tuple[str, str]]) -> SignatureClaim:
        """Verifies the signature of a request and returns its claim.

        Raises AuthenticationError, or one of its kinds, where it does not hold.
        """
        claim = requests.read_claim(headers)
        if self._find_signer(claim, target) is None:
            raise AuthenticationError(UNKNOWN)
        now = self._require_recent(claim.created)
        assert isinstance(self._nonces, Nonces)
        if not self._nonces.add_nonce(claim.name, claim.nonce, created=claim.created, now=now):
            raise ReplayError(REPLAYED)
        return claim

    async def accept_request(self, target: RequestTarget, headers: Iterable[tuple[str, str]]) -> SignatureClaim:
        """Verifies a request as `verify_request` does, where several workers share nonces and keys.

        A worker looks for keys that it does not know: once for all who call meanwhile, and after the same work for an
        unknown name as for a wrong key. A key that it knows may have been removed: storing the nonce tells that.
        """
        if isinstance(self._nonces, Nonces):
            return self.verify_request(target, headers)
        claim = requests.read_claim(headers)
        key = self._find_signer(claim, target)
        if key is None:
            await self._keys.look_up()
            key = self._find_signer(claim, target)
        if key is None:
            raise AuthenticationError(UNKNOWN)
        now = self._require_recent(claim.created)
        new = await self._nonces.add_nonce(claim.name, claim.nonce, created=claim.created, now=now)
        if self._keys.registered_key(claim.name) is not key:
            raise AuthenticationError(UNKNOWN)
        if not new:
            raise ReplayError(REPLAYED)
        return claim

    def _find_signer(self, claim: SignatureClaim, target: RequestTarget) -> PublicKey | None:
        """Returns the registered key that has signed a request; None for another one."""
        key = self._keys.registered_key(claim.name)
        return key if requests.is_valid_claim(claim, target, key or self._unregistered_key) else None

    def close(self) -> None:
        self._nonces.close()

    def _require_recent(self, created: int) -> float:
        """Returns the time; raises ClockError for a signature too far from it.

        A signature has whole seconds: a request signed within one second is as old as its beginning.
        """
        now = self._clock()
        late = now - created
        if abs(late) > self._seconds:
            order = "behind" if late > 0 else "ahead of"
            expected = f"signature: expected a time within {self._seconds} s of the aggregator's clock"
            raise ClockError(f"{expected}, got one {abs(late):.0f} s {order} it: set the clocks")
        return now
