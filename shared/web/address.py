"""Host names and addresses: which are loopback, and which URLs can be called."""

from __future__ import annotations

import ipaddress
from functools import lru_cache

from shared.errors import SettingsError

HIGHEST_PORT = 65535
HOST_NAME = r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*\.?"  # or an IPv4 address
SUBNET = 64  # bits of an IPv6 address that a caller cannot choose
LOCALHOST = "localhost"
ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}
"""Loopback address by which this machine calls a service that listens at each of these wildcard addresses."""


def is_loopback(host: str) -> bool:
    """Tells whether a host is a name or an address of loopback."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == LOCALHOST


@lru_cache(maxsize=4096)  # each call asks, and a silo calls from one address
def caller_address(host: str) -> str:
    """Finds the address or IPv6 network that identifies a caller."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return str(host)
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:  # at a port that listens for both
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, SUBNET), strict=False))


def write_address(host: str, port: int, *, tls: bool = False) -> str:
    """Returns the URL by which this machine calls a service that listens at `host`."""
    name = ANY_ADDRESS.get(host, host)
    return f"{'https' if tls else 'http'}://{f'[{name}]' if ':' in name else name}:{port}"


def require_url(text: str) -> str:
    """Returns a URL of the form http://HOST[:PORT] or https.

    Raises SettingsError for another form.
    """
    import httpx  # which the aggregator does without

    try:
        url = httpx.URL(text)
        usable = url.scheme in ("http", "https") and url.host and (url.port is None or 1 <= url.port <= HIGHEST_PORT)
    except httpx.InvalidURL:
        usable = False
    if not usable:
        raise SettingsError(f"expected http://HOST:PORT with a port of 1..{HIGHEST_PORT}, or https://, got {text!r}")
    return text


def require_port(option: str, port: int) -> int:
    """Returns a port from 1 to 65535; raises SettingsError for another number."""
    if not 1 <= port <= HIGHEST_PORT:
        raise SettingsError(f"{option}: expected 1..{HIGHEST_PORT}, got {port}")
    return port


def require_https(url: str, *, allow_http: bool, secure: bool = False) -> str:
    """Returns a URL with https, or one of this machine.

    Raises SettingsError for plain http to another machine: always in a secure federation, elsewhere unless
    `allow_http` says that the network is trusted.
    """
    import httpx

    parts = httpx.URL(require_url(url))
    if parts.scheme == "https" or is_loopback(parts.host):
        return url
    words = "because others on the network can read and change plain http"
    if secure:
        raise SettingsError(f"{url}: expected https:// in a secure federation, {words}")
    if not allow_http:
        raise SettingsError(f"{url}: expected https://, {words}; add --allow-http if the network is trusted")
    return url
