"""A call by TLS: whom to believe, what to show, and why it failed. Who calls nobody needs no HTTP client."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx

from shared.errors import SettingsError
from shared.web.tls import CALLS, Identity, trust


class Calling:
    """How calls are made by TLS: whom to believe, and what to show where the other side asks for a certificate.

    Believed is what `authority` alone has signed, or without one those that httpx knows. SettingsError for bad files.
    """

    def __init__(self, authority: Path | None = None, certificate: Path | None = None, key: Path | None = None) -> None:
        self.context = _trust_context(authority)
        self.identities: dict[str, Identity] = {}
        if (certificate is None) != (key is None):
            raise SettingsError("expected a certificate together with its key, got one of them")
        if certificate is not None and key is not None:
            self.identities[CALLS] = Identity(self.context, certificate, key)


def failure(error: BaseException | None) -> str | None:
    """What went wrong with TLS where a call failed because of it; None where it failed for another reason."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not believed ({error.verify_message})"
    return None if error is None else f"TLS failed ({(error.reason or 'no reason').replace('_', ' ').lower()})"


def reason(error: Exception) -> str:
    """Why a call failed: what `failure` says, or the error's name. A port that misses a certificate just hangs up."""
    hung_up = isinstance(error, httpx.RemoteProtocolError | httpx.ReadError | httpx.WriteError)
    asks = " (does it ask for a certificate?)" if hung_up and _by_tls(error) else ""
    return failure(error) or f"{type(error).__name__}{asks}"


def _by_tls(error: Exception) -> bool:
    request = getattr(error, "_request", None)  # `error.request` raises where there is none
    return request is not None and request.url.scheme == "https"


def _trust_context(authority: Path | None) -> ssl.SSLContext:
    if authority is None:
        context = httpx.create_ssl_context()
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trust(context, authority)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
