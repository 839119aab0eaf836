"""Members of a federation in one file that operators exchange and silos pin.

It is TOML: the aggregator's public key, and under [clients] each client's, all in hexadecimal. Two silos have the
same members if the file's fingerprint is the same: `lpsfed members show` prints it.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from shared.errors import SettingsError
from shared.files import PUBLIC, replace_file
from shared.message import Message
from shared.protocol.schemas import ClientName
from shared.protocol.signing.keys import PublicKey, public_key, raw_hex, read_public

MOST_BYTES = 1 << 20  # of the file; a thousand members take 80 kB
COMMENT = "# The members of one federation. Every silo pins this file: compare fingerprints before it is used.\n"


class _Content(Message):
    """Content of the file."""

    aggregator: str
    clients: dict[ClientName, str]


_CONTENT = TypeAdapter(_Content)


@dataclass(frozen=True)
class Registry:
    """Public keys of the aggregator and of all clients."""

    aggregator: PublicKey
    clients: Mapping[str, PublicKey]

    def to_toml(self) -> str:
        """Writes the file's content, sorted by name, so that equal members give equal files."""
        lines = (f'{name} = "{raw_hex(key)}"\n' for name, key in sorted(self.clients.items()))
        return f'{COMMENT}aggregator = "{raw_hex(self.aggregator)}"\n\n[clients]\n' + "".join(lines)

    def fingerprint(self) -> str:
        """Computes the sha256 of the file's content, for comparison by telephone."""
        return hashlib.sha256(self.to_toml().encode()).hexdigest()


def write_registry(path: Path, aggregator: Path, clients: Iterable[Path]) -> Path:
    """Writes the members' file from files of public keys, and returns its path.

    Each is a `<name>.pub`; an existing file is replaced.
    """
    found = {file.stem: read_public(file) for file in clients}
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, Registry(read_public(aggregator), found).to_toml().encode(), PUBLIC)
    return path


def read_registry(path: Path) -> Registry:
    """Reads a members' file; raises SettingsError for another file or a repeated key."""
    content = _parse(path)
    try:
        aggregator = public_key(bytes.fromhex(content.aggregator))
        clients = {name: public_key(bytes.fromhex(key)) for name, key in content.clients.items()}
    except (ValueError, SettingsError) as error:
        raise SettingsError(f"{path}: expected Ed25519 public keys in hexadecimal ({error})") from None
    held = [raw_hex(key) for key in (aggregator, *clients.values())]
    if len(set(held)) != len(held):
        raise SettingsError(f"{path}: expected a key of its own for each member, got one key twice")
    return Registry(aggregator, clients)


def _parse(path: Path) -> _Content:
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES).decode()
        return _CONTENT.validate_python(tomllib.loads(text))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, ValidationError) as error:
        said = "fields other than aggregator and [clients]" if isinstance(error, ValidationError) else str(error)
        raise SettingsError(f"{path}: expected a file that `lpsfed members write` has made, got {said}") from None
