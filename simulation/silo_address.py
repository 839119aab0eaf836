"""A silo's settings file -> where its client answers, with which key, and which shard is its own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from client_service.settings import read_file_beneath_environment
from shared.errors import SettingsError
from simulation.small_files import read_small_file

USUAL_PORT = 8801


@dataclass(frozen=True)
class SiloAddress:
    """Where a client answers; key_file: holds the application's key, None where the client asks for none."""

    url: str = f"http://127.0.0.1:{USUAL_PORT}"
    key_file: Path | None = None
    shard: Path | None = None

    def change(self, url: str | None, key_file: Path | None, shard: Path | None) -> SiloAddress:
        """The same with what is given in its place."""
        return SiloAddress(url or self.url, key_file or self.key_file, shard or self.shard)

    def require_shard(self) -> Path:
        """SettingsError where none is known."""
        if self.shard is None:
            raise SettingsError("--shard: expected the silo's shard, or its settings by --silo, got neither")
        return self.shard

    def read_key(self) -> str | None:
        """The application's key. SettingsError for a file that holds none."""
        return None if self.key_file is None else read_small_file(self.key_file, "a key")


def read_silo_address(file: Path | None) -> SiloAddress:
    """What a silo's settings say; the usual place for no file. SettingsError for a file of no use."""
    if file is None:
        return SiloAddress()
    values = read_file_beneath_environment(file)
    scheme = "https" if values.get("tls_certificate") else "http"
    port = values.get("serving_port") or values.get("port", USUAL_PORT)
    return SiloAddress(f"{scheme}://127.0.0.1:{port}", _path(values, "application_key_file"), _path(values, "shard"))


def _path(values: dict[str, Any], name: str) -> Path | None:
    return Path(str(values[name])) if values.get(name) else None
