"""Settings of a service's port, shared by both services, and warnings about them."""

from __future__ import annotations

import ipaddress
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pydantic import BaseModel, Field, field_validator, model_validator

from shared.web.address import is_loopback
from shared.web.connection_limits import MOST, MOST_OF_ADDRESS, ConnectionLimiter

if TYPE_CHECKING:
    from shared.web.tls import TlsIdentity

Socket = socket.socket  # for annotations in modules that open no socket themselves
PORT = "port"  # key of the certificate that callers of the port see
REQUESTS_PER_SECOND = 100.0  # default for one caller, where other machines can reach the port


def duplicate_socket(descriptor: int) -> Socket:
    """Duplicates an inherited socket, which stays open when the copy is closed."""
    return socket.socket(fileno=os.dup(descriptor))


class ListenSettings(BaseModel):
    """Settings of the port: address, certificate, and limits of one caller."""

    host: str = Field("127.0.0.1", description="address to listen on")
    port: int = Field(0, ge=0, le=65535)
    demo: bool = Field(False, description="for trials only: keys are optional, and example keys are accepted")
    tls_certificate: Path | None = Field(
        None, description="certificate of the port (PEM), own certificate first; enables TLS"
    )
    tls_key: Path | None = Field(None, description="private key of TLS_CERTIFICATE (PEM), without a passphrase")
    tls_client_authority: Path | None = Field(
        None, description="CA bundle (PEM): callers must show a certificate of it"
    )
    requests_per_second: float | None = Field(
        None,
        ge=0,
        allow_inf_nan=False,
        description=(
            "largest number of requests per second of a caller to a process; 0: no limit; unset: 100,"
            " on loopback no limit"
        ),
    )
    most_connections: int = Field(
        MOST,
        ge=1,
        description=(
            "largest number of open connections; idle ones are closed to make room, further ones get "
            "503: [limits](reliability.md#limits-of-connections)"
        ),
    )
    most_connections_of_address: int = Field(
        MOST_OF_ADDRESS,
        ge=0,
        description=("largest number of connections of an address, except loopback and trusted proxies; 0: no limit"),
    )
    kept_connections: int | None = Field(
        None,
        ge=0,
        description="part of `MOST_CONNECTIONS` that is reserved for authenticated callers; unset: a quarter",
    )
    trusted_proxies: tuple[str, ...] = Field(
        (), description="JSON list of addresses and networks whose `X-Forwarded-For` is trusted"
    )
    ready_file: Path | None = Field(
        None,
        description=(
            "file that exists while the service is ready, for a health check without Python "
            "(`shared/web/ready.sh`); the images set `/tmp/ready`"
        ),
    )

    @field_validator("trusted_proxies")
    @classmethod
    def _networks(cls, proxies: tuple[str, ...]) -> tuple[str, ...]:
        for proxy in proxies:
            ipaddress.ip_network(proxy)
        return proxies

    @model_validator(mode="after")
    def _require_room_for_new_callers(self) -> Self:
        if self.kept_connections is not None and self.kept_connections >= self.most_connections:
            expected = f"kept_connections: expected less than most_connections = {self.most_connections}"
            raise ValueError(f"{expected}, because every caller is untrusted at first, got {self.kept_connections}")
        return self

    @model_validator(mode="after")
    def _require_whole_certificate(self) -> Self:
        for name, other in (("tls_certificate", "tls_key"), ("tls_key", "tls_certificate")):
            if getattr(self, name) is not None and getattr(self, other) is None:
                raise ValueError(f"{name}: expected {other} beside it, got none")
        if self.tls_client_authority is not None and self.tls_certificate is None:
            raise ValueError("tls_client_authority: expected tls_certificate beside it, got none")
        return self

    @property
    def on_loopback(self) -> bool:
        """Whether only this machine can reach the port."""
        return is_loopback(self.host)

    def identities(self) -> dict[str, TlsIdentity]:
        """Loads the port's certificate, by name; empty without one.

        Raises SettingsError for files that cannot be used.
        """
        if self.tls_certificate is None or self.tls_key is None:
            return {}
        from shared.web.tls import load_port_identity  # which takes memory, and who has no certificate needs none

        return {PORT: load_port_identity(self.tls_certificate, self.tls_key, self.tls_client_authority)}

    def connection_limiter(self) -> ConnectionLimiter:
        """Makes the port's connection limiter."""
        most, of_address = self.most_connections, self.most_connections_of_address
        return ConnectionLimiter(most, of_address, self.kept_connections, self.trusted_proxies)

    @property
    def rate_limit(self) -> float:
        """Requests a second of one caller; 0: no limit."""
        if self.requests_per_second is not None:
            return self.requests_per_second
        return 0.0 if self.on_loopback else REQUESTS_PER_SECOND

    def list_warnings(self) -> list[str]:
        """Lists warnings about the settings for the log, one sentence each."""
        if self.on_loopback or self.tls_certificate is not None:
            return []
        return ["without tls_certificate others on the network can read and change the traffic of this port"]
