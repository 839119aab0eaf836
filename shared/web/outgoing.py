"""A call: whom to believe by TLS, what to show, through which proxy, and why it failed. Who calls nobody needs no HTTP
client."""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx

from shared.errors import SettingsError
from shared.web.address import HIGHEST_PORT
from shared.web.tls import CALLS, TlsIdentity, trust_authority


class OutgoingTls:
    """How calls are made by TLS: whom to believe, and what to show where the other side asks for a certificate.

    Believed is what `authority` alone has signed, or without one those that httpx knows. SettingsError for bad files.
    """

    def __init__(self, authority: Path | None = None, certificate: Path | None = None, key: Path | None = None) -> None:
        self.context = _trust_context(authority)
        self.identities: dict[str, TlsIdentity] = {}
        if (certificate is None) != (key is None):
            raise SettingsError("expected a certificate together with its key, got one of them")
        if certificate is not None and key is not None:
            self.identities[CALLS] = TlsIdentity(self.context, certificate, key)


def build_proxy(url: str) -> httpx.Proxy:
    """The forward proxy at a URL. ValueError, which does not hold the URL, for what is none: it may hold a password.

    What a proxy by https shows is held against the authorities that httpx knows, never the aggregator's own.
    """
    try:
        found = httpx.URL(url)
        usable = found.scheme in ("http", "https") and bool(found.host)
        usable = usable and (found.port is None or 1 <= found.port <= HIGHEST_PORT)
        usable = usable and found.raw_path == b"/" and not found.fragment
    except httpx.InvalidURL:
        usable = False
    if not usable:
        form = "http://HOST:PORT or http://USER:PASSWORD@HOST:PORT, or https://"
        raise ValueError(
            f"expected {form}, with signs such as @ / # % of a password as %40 and so on; got another form"
        )
    return httpx.Proxy(found, ssl_context=_trust_context(None) if found.scheme == "https" else None)


class ProxyTransport(httpx.AsyncHTTPTransport):
    """Carries requests through a forward proxy: https by CONNECT, so that TLS ends at the other side; http as it is.

    httpx.ProxyError where the proxy is not there, or does not let a request through.
    """

    def __init__(self, context: ssl.SSLContext, proxy: httpx.Proxy) -> None:
        super().__init__(verify=context, proxy=proxy, trust_env=False)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            response = await super().handle_async_request(request)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            if describe_tls_failure(error) is not None:  # of TLS, which has words of its own
                raise
            raise httpx.ProxyError("no connection") from error
        if response.status_code == httpx.codes.PROXY_AUTHENTICATION_REQUIRED:
            await response.aclose()
            raise httpx.ProxyError(str(response.status_code))
        return response


def describe_tls_failure(error: BaseException | None) -> str | None:
    """What went wrong with TLS where a call failed because of it; None where it failed for another reason."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not believed ({error.verify_message})"
    return None if error is None else f"TLS failed ({(error.reason or 'no reason').replace('_', ' ').lower()})"


def describe_call_failure(error: Exception) -> str:
    """Why a call failed: what `failure` says, or the error's name. A port that misses a certificate just hangs up."""
    if isinstance(error, httpx.ProxyError):
        return _describe_proxy_error(error)
    hung_up = isinstance(error, httpx.RemoteProtocolError | httpx.ReadError | httpx.WriteError)
    asks = " (does it ask for a certificate?)" if hung_up and _uses_tls(error) else ""
    return describe_tls_failure(error) or f"{type(error).__name__}{asks}"


def _describe_proxy_error(error: httpx.ProxyError) -> str:
    """Our own words and a status: the proxy's could hold anything."""
    status = str(error)[:3]
    if status == str(httpx.codes.PROXY_AUTHENTICATION_REQUIRED.value):
        return f"outbound_proxy answered {status}: expected another user or password in its URL"
    if status.isdecimal():
        return f"outbound_proxy answered {status}: it does not connect to the aggregator; ask whoever runs it"
    return "outbound_proxy: no connection through it; check its address, and that it runs"


def _uses_tls(error: Exception) -> bool:
    request = getattr(error, "_request", None)  # `error.request` raises where there is none
    return request is not None and request.url.scheme == "https"


def _trust_context(authority: Path | None) -> ssl.SSLContext:
    if authority is None:
        context = httpx.create_ssl_context()
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        trust_authority(context, authority)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
