"""Verification of request signatures against the registered keys, each nonce once.

Requests that can be refused without a key are refused first, and reveal nothing about who is registered. Then the
signature is checked: an unknown name is refused in the same words, and after the same work, as a wrong key. Only the
holder of the key learns how the clocks differ, and only its nonces are stored.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

from aggregator_service.process import LOGGER, Clock
from aggregator_service.storage.nonces import Nonces
from aggregator_service.storage.shared_nonces import SharedNonces
from shared.errors import AuthenticationError, ClockError, ReplayError, SettingsError
from shared.protocol.signing import requests
from shared.protocol.signing.enrolment import public_file
from shared.protocol.signing.keys import PublicKey, new_key, read_public
from shared.protocol.signing.requests import RequestTarget, SignatureClaim

REPLAYED = "signature: expected a new nonce, got one of an earlier request"
Version = tuple[int, int, int]


class RegisteredKeys:
    """Public keys of the registered clients."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._prefix = folder, f"{folder}/"
        self._held: dict[str, tuple[Version, PublicKey | None]] = {}

    def registered_key(self, name: str) -> PublicKey | None:
        """Returns the client's key; None without a valid file, which is logged."""
        try:
            status = os.stat(f"{self._prefix}{name}.pub")  # of `public_file`, without a path's parts: each call asks
        except FileNotFoundError:
            self._held.pop(name, None)
            return None
        version = status.st_ino, status.st_size, status.st_mtime_ns
        held = self._held.get(name)
        if held is None or held[0] != version:
            held = self._held[name] = version, _read_key(name, public_file(name, self._folder))
        return held[1]


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
        claim, now = self._verify_signature(target, headers)
        assert isinstance(self._nonces, Nonces)
        if not self._nonces.add_nonce(claim.name, claim.nonce, created=claim.created, now=now):
            raise ReplayError(REPLAYED)
        return claim

    async def accept_request(self, target: RequestTarget, headers: Iterable[tuple[str, str]]) -> SignatureClaim:
        """Verifies a request as `verify_request` does; the nonces of several workers are waited for."""
        if isinstance(self._nonces, Nonces):
            return self.verify_request(target, headers)
        claim, now = self._verify_signature(target, headers)
        if not await self._nonces.add_nonce(claim.name, claim.nonce, created=claim.created, now=now):
            raise ReplayError(REPLAYED)
        return claim

    def _verify_signature(
        self, target: RequestTarget, headers: Iterable[tuple[str, str]]
    ) -> tuple[SignatureClaim, float]:
        """Verifies all but the nonce; returns the claim and the time."""
        claim = requests.read_claim(headers)
        key = self._keys.registered_key(claim.name)
        if not requests.is_valid_claim(claim, target, key or self._unregistered_key) or key is None:
            what = "the private key whose public key is registered under this name"
            raise AuthenticationError(f"signature: expected this request signed by {what}, got another")
        now = self._clock()
        self._require_recent(claim.created, now)
        return claim, now

    def close(self) -> None:
        self._nonces.close()

    def _require_recent(self, created: int, now: float) -> None:
        """Raises ClockError for a signature too far from this clock.

        A signature has whole seconds: a request signed within one second is as old as its beginning.
        """
        late = now - created
        if abs(late) > self._seconds:
            order = "behind" if late > 0 else "ahead of"
            expected = f"signature: expected a time within {self._seconds} s of the aggregator's clock"
            raise ClockError(f"{expected}, got one {abs(late):.0f} s {order} it: set the clocks")
