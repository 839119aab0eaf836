"""What is written as a service's address or port -> that it can be called, or one clear line."""

from __future__ import annotations

import httpx

from shared.errors import SettingsError
from shared.web.loopback import is_loopback

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


def require_guarded(url: str, *, allow_http: bool, secure: bool = False) -> str:
    """https, or an address of this machine. SettingsError for plain http to anywhere else, which a secure federation
    never uses, and others where `allow_http` says that the way is trusted."""
    parts = httpx.URL(require_url(url))
    if parts.scheme == "https" or is_loopback(parts.host):
        return url
    words = "because whoever is on the way reads and changes what is said by http"
    if secure:
        raise SettingsError(f"{url}: expected https:// in a secure federation, {words}")
    if not allow_http:
        raise SettingsError(f"{url}: expected https://, {words}; --allow-http where the way is trusted")
    return url
