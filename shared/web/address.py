"""What is written as a service's address or port -> that it can be called, or one clear line."""

from __future__ import annotations

import httpx

from shared.errors import SettingsError

MOST = 65535  # the highest port that there is


def require_url(text: str) -> str:
    """http://HOST or http://HOST:PORT, or the same with https; SettingsError for what nobody can be called by."""
    try:
        url = httpx.URL(text)
        usable = url.scheme in ("http", "https") and url.host and (url.port is None or 1 <= url.port <= MOST)
    except httpx.InvalidURL:
        usable = False
    if not usable:
        raise SettingsError(f"expected http://HOST:PORT with a port of 1..{MOST}, or https://, got {text!r}")
    return text


def require_port(option: str, port: int) -> int:
    """A port that somebody can listen on; 0, by which the system chooses one, is none."""
    if not 1 <= port <= MOST:
        raise SettingsError(f"{option}: expected 1..{MOST}, got {port}")
    return port
