"""Names and addresses of this machine: which of them no other machine can reach, and how a service here is called."""

from __future__ import annotations

import ipaddress

LOCALHOST = "localhost"
ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}
"""Listening at each of these, a service is called by the second one from this machine."""


def is_loopback(host: str) -> bool:
    """Is it a name or an address of this machine that no other can reach?"""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == LOCALHOST


def write_address(host: str, port: int, *, tls: bool = False) -> str:
    """How this machine calls a service that listens at `host`: an address of loopback where it listens at all."""
    name = ANY_ADDRESS.get(host, host)
    return f"{'https' if tls else 'http'}://{f'[{name}]' if ':' in name else name}:{port}"
