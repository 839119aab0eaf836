"""A file -> the client's private key, by which the aggregator knows it; read at the start and never shown."""

from __future__ import annotations

from pathlib import Path

from shared.errors import SettingsError
from shared.protocol.signing.enrolment import KeyFiles
from shared.protocol.signing.keys import PrivateKey, read_private


def own_key(client: str, state_directory: Path, given: Path | None = None) -> PrivateKey:
    """The key in the file `given`, or in `<client>.key` in the client's state directory.

    SettingsError where there is none, where others may read it, or where it is no such key.
    """
    path = given or KeyFiles.of(client, state_directory).private
    if not path.exists():
        raise SettingsError(f"{path}: expected the private key of {client!r}; `lpsfed keys new {client}` makes one")
    return read_private(path)
