"""A folder of public keys, one file a client -> the key of whoever calls, as the folder has it now.

Each file is looked at whenever its client calls and read again once it has changed: whoever is put into the folder can
call, and whoever is taken out of it cannot, without a restart.
"""

from __future__ import annotations

from pathlib import Path

from aggregator_service.logs import LOGGER
from shared.errors import SettingsError
from shared.protocol.signing.enrolment import public_file
from shared.protocol.signing.keys import PublicKey, read_public

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
