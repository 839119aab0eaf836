"""The registered keys, and the headers of a request -> the client that has signed it just now, and for the first time.

What can be refused without a key is refused first, and says nothing about who is registered. Then the signature: a
name that nobody has is refused in the same words, and after the same work, as a key that is not the name's. Only
whoever has the key learns how the clocks differ, and only its requests are remembered.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from aggregator_service.process import LOGGER, Clock
from aggregator_service.storage.nonces import Nonces
from shared.errors import AuthenticationError, ClockError, ReplayError, SettingsError
from shared.protocol.signing import requests
from shared.protocol.signing.enrolment import public_file
from shared.protocol.signing.keys import PublicKey, new_key, read_public
from shared.protocol.signing.requests import RequestTarget, SignatureClaim

Version = tuple[int, int, int]


class RegisteredKeys:
    """The registered clients."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: dict[str, tuple[Version, PublicKey | None]] = {}

    def registered_key(self, name: str) -> PublicKey | None:
        """The client's key; None where there is none, or a file that holds none, as the log says then."""
        file = public_file(name, self._folder)
        try:
            status = file.stat()
        except FileNotFoundError:
            self._held.pop(name, None)
            return None
        version = status.st_ino, status.st_size, status.st_mtime_ns
        held = self._held.get(name)
        if held is None or held[0] != version:
            held = self._held[name] = version, _read_key(name, file)
        return held[1]


def _read_key(name: str, file: Path) -> PublicKey | None:
    try:
        return read_public(file)
    except SettingsError as error:
        LOGGER.error("key_refused", client=name, reason=str(error))
        return None


class Signatures:
    """Who may call. A signature counts for `seconds` before and after its time.

    The clock is the wall's, by which callers sign, and not the rounds', which a test may set.
    """

    def __init__(self, keys: RegisteredKeys, nonces: Nonces, *, seconds: int, clock: Clock = time.time) -> None:
        self._keys, self._nonces, self._seconds, self._clock = keys, nonces, seconds, clock
        self._unregistered_key = new_key().public_key()

    def verify_request(self, target: RequestTarget, headers: Iterable[tuple[str, str]]) -> SignatureClaim:
        """What is claimed, which is true then. AuthenticationError, or one of its kinds, for anything else."""
        claim = requests.read(headers)
        key = self._keys.registered_key(claim.name)
        if not requests.holds(claim, target, key or self._unregistered_key) or key is None:
            what = "the private key whose public key is registered under this name"
            raise AuthenticationError(f"signature: expected one of this very request by {what}, got another")
        now = self._clock()
        self._require_recent(claim.created, now)
        if not self._nonces.add_nonce(claim.name, claim.nonce, created=claim.created, now=now):
            raise ReplayError("signature: expected a nonce that has not come before, got a request that has")
        return claim

    def close(self) -> None:
        self._nonces.close()

    def _require_recent(self, created: int, now: float) -> None:
        """A signature says whole seconds: what was signed within one is as old as its beginning."""
        late = now - created
        if abs(late) > self._seconds:
            order = "behind" if late > 0 else "ahead of"
            expected = f"signature: expected a time within {self._seconds} s of the aggregator's clock"
            raise ClockError(f"{expected}, got one {abs(late):.0f} s {order} it: set the clocks")
