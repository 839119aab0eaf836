"""The members of a federation <-> one file that its operators exchange and each silo pins.

It is TOML: the aggregator's public key, and under [clients] each client's, all in hexadecimal. Two silos have the same
members if the file's fingerprint is the same: `lpsfed members show` prints it.
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
    """The file as it is written."""

    aggregator: str
    clients: dict[ClientName, str]


_CONTENT = TypeAdapter(_Content)


@dataclass(frozen=True)
class Registry:
    """Whose answers are believed, and whose messages."""

    aggregator: PublicKey
    clients: Mapping[str, PublicKey]

    def to_toml(self) -> str:
        """The file's content: members by name, so that the same members make the same file."""
        lines = (f'{name} = "{raw_hex(key)}"\n' for name, key in sorted(self.clients.items()))
        return f'{COMMENT}aggregator = "{raw_hex(self.aggregator)}"\n\n[clients]\n' + "".join(lines)

    def fingerprint(self) -> str:
        """The sha256 of the file's content in hexadecimal: short enough to be compared by telephone."""
        return hashlib.sha256(self.to_toml().encode()).hexdigest()


def write_registry(path: Path, aggregator: Path, clients: Iterable[Path]) -> Path:
    """The file of these public keys, each in a `<name>.pub`; what was there before is replaced. The file's path."""
    found = {file.stem: read_public(file) for file in clients}
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, Registry(read_public(aggregator), found).to_toml().encode(), PUBLIC)
    return path


def read_registry(path: Path) -> Registry:
    """SettingsError for a file that is none, or in which a key stands twice."""
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
