"""Opens a Python client of a silo's service from the silo's settings file."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from client_service.settings import read_settings_file
from lpsfed import Client, RefusedError, SiloError, UnreachableError
from shared.errors import ConflictError, FederationError, ProtocolError, SettingsError, UnavailableError
from simulation.operating.text_files import read_small_file

DEFAULT_PORT = 8801


@dataclass(frozen=True)
class SiloAddress:
    """Address of a silo's client.

    key_file: holds the key of the caller; None if the client needs none.
    """

    url: str = f"http://127.0.0.1:{DEFAULT_PORT}"
    key_file: Path | None = None
    shard: Path | None = None

    def change(self, url: str | None, key_file: Path | None, shard: Path | None) -> SiloAddress:
        """Returns the address with the given values in place of its own."""
        return SiloAddress(url or self.url, key_file or self.key_file, shard or self.shard)

    def require_shard(self) -> Path:
        """Returns the shard's folder. Raises SettingsError if it is unknown."""
        if self.shard is None:
            raise SettingsError("--shard: expected the silo's shard, or its settings by --silo, got neither")
        return self.shard

    def read_key(self) -> str | None:
        """Reads the key. Raises SettingsError for a file without one."""
        return None if self.key_file is None else read_small_file(self.key_file, "a key")


def read_silo_address(file: Path | None, key: str = "application_key_file") -> SiloAddress:
    """Reads a silo's address from its settings; without a file the default address.

    key: the setting that names the key's file. Raises SettingsError for an invalid file.
    """
    if file is None:
        return SiloAddress()
    values = read_settings_file(file)
    scheme = "https" if values.get("tls_certificate") else "http"
    port = values.get("port", DEFAULT_PORT)
    return SiloAddress(f"{scheme}://127.0.0.1:{port}", _read_path(values, key), _read_path(values, "shard"))


def _read_path(values: dict[str, Any], name: str) -> Path | None:
    return Path(str(values[name])) if values.get(name) else None


def _hint_of(error: UnreachableError, key_flag: str) -> str:
    if not str(error).endswith("ConnectError"):
        return ""
    return f" (nothing listens there: start the silo, or give --silo NAME/silo.toml, or --client-url and {key_flag})"


@contextmanager
def open_silo(url: str, key: str | None, ca: Path | None, key_flag: str = "--application-key-file") -> Iterator[Client]:
    """Opens a client of the silo's service. key_flag: the option that names the key's file.

    Raises SettingsError for an invalid address, key or authority; errors of calls are raised as those of this
    project.
    """
    try:
        client = Client(url, key, ca=ca)
    except ssl.SSLError:
        raise SettingsError(f"--ca: expected certificates of an authority as PEM, got {ca}") from None
    except OSError as error:
        raise SettingsError(f"--ca: expected a readable file, got {ca} ({error.strerror})") from None
    except ValueError as error:
        raise SettingsError(str(error)) from None
    with client:
        try:
            yield client
        except UnreachableError as error:
            raise UnavailableError(f"{url}: {error}{_hint_of(error, key_flag)}") from None
        except RefusedError as error:
            key_words = f"; {key_flag} names the key's file" if error.status == HTTPStatus.UNAUTHORIZED else ""
            kind = ConflictError if error.code == ConflictError.code else FederationError
            raise kind(f"{url}: {error}{key_words}" if key_words else str(error)) from None
        except SiloError as error:
            raise ProtocolError(f"{url}: {error}") from None
