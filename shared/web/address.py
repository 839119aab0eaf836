"""Names and addresses of services: which are this machine's own, and whether one that is written can be called."""

from __future__ import annotations

import ipaddress

from shared.errors import SettingsError

HIGHEST_PORT = 65535
HOST_NAME = r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*\.?"  # or an IPv4 address
SUBNET = 64  # bits of an IPv6 address that a caller cannot choose
LOCALHOST = "localhost"
ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}
"""Listening at each of these, a service is called by the second one from this machine."""


def is_loopback(host: str) -> bool:
    """Is it a name or an address of this machine that no other can reach?"""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == LOCALHOST


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
    """How this machine calls a service that listens at `host`: an address of loopback where it listens at all."""
    name = ANY_ADDRESS.get(host, host)
    return f"{'https' if tls else 'http'}://{f'[{name}]' if ':' in name else name}:{port}"


def require_url(text: str) -> str:
    """http://HOST or http://HOST:PORT, or the same with https; SettingsError for what nobody can be called by."""
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
    """A port that somebody can listen on; 0, by which the system chooses one, is none."""
    if not 1 <= port <= HIGHEST_PORT:
        raise SettingsError(f"{option}: expected 1..{HIGHEST_PORT}, got {port}")
    return port


def require_https(url: str, *, allow_http: bool, secure: bool = False) -> str:
    """https, or an address of this machine. SettingsError for plain http to anywhere else, which a secure federation
    never uses, and others where `allow_http` says that the way is trusted."""
    import httpx

    parts = httpx.URL(require_url(url))
    if parts.scheme == "https" or is_loopback(parts.host):
        return url
    words = "because whoever is on the way reads and changes what is said by http"
    if secure:
        raise SettingsError(f"{url}: expected https:// in a secure federation, {words}")
    if not allow_http:
        raise SettingsError(f"{url}: expected https://, {words}; --allow-http where the way is trusted")
    return url
