"""Outgoing calls: trusted authorities, client certificates, proxies, and reasons of failures.

A service that makes no calls needs no HTTP client.
"""

from __future__ import annotations

import ssl
from pathlib import Path

import httpx

from shared.errors import SettingsError
from shared.web.address import HIGHEST_PORT
from shared.web.tls import CALLS, TlsIdentity, trust_authority


class OutgoingTls:
    """TLS context of outgoing calls: trusted authorities and an optional client certificate.

    Certificates signed by `authority` alone are trusted; without one, those of the authorities that httpx knows.
    Raises SettingsError for files that cannot be used.
    """

    def __init__(self, authority: Path | None = None, certificate: Path | None = None, key: Path | None = None) -> None:
        self.context = _trust_context(authority)
        self.identities: dict[str, TlsIdentity] = {}
        if (certificate is None) != (key is None):
            raise SettingsError("expected a certificate and its key, got only one of them")
        if certificate is not None and key is not None:
            self.identities[CALLS] = TlsIdentity(self.context, certificate, key)


def build_proxy(url: str) -> httpx.Proxy:
    """Makes the forward proxy of a URL.

    Raises ValueError for another form; the message does not hold the URL, which may hold a password. The certificate
    of a proxy by https is checked against the authorities that httpx knows, never the aggregator's own.
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
            f"expected {form}, with characters such as @ / # % of a password percent-encoded (%40); got another form"
        )
    return httpx.Proxy(found, ssl_context=_trust_context(None) if found.scheme == "https" else None)


class ProxyTransport(httpx.AsyncHTTPTransport):
    """HTTP transport through a forward proxy: CONNECT for https, plain for http.

    With CONNECT, TLS ends at the other service, not at the proxy. Raises httpx.ProxyError if the proxy cannot be
    reached or refuses.
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
    """Describes the TLS error behind a failed call; None for another cause."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    return None if error is None else f"TLS failed ({(error.reason or 'no reason').replace('_', ' ').lower()})"


def describe_call_failure(error: Exception) -> str:
    """Describes why a call failed, by its TLS error or the error's name.

    A port that requires a client certificate just closes the connection: the text then asks whether one is needed.
    """
    if isinstance(error, httpx.ProxyError):
        return _describe_proxy_error(error)
    hung_up = isinstance(error, httpx.RemoteProtocolError | httpx.ReadError | httpx.WriteError)
    asks = " (does it require a client certificate?)" if hung_up and _uses_tls(error) else ""
    return describe_tls_failure(error) or f"{type(error).__name__}{asks}"


def _describe_proxy_error(error: httpx.ProxyError) -> str:
    """Describes a proxy's refusal in our own words and its status.

    The proxy's own text could hold anything.
    """
    status = str(error)[:3]
    if status == str(httpx.codes.PROXY_AUTHENTICATION_REQUIRED.value):
        return f"outbound_proxy answered {status}: expected another user or password in its URL"
    if status.isdecimal():
        return f"outbound_proxy answered {status}: it does not connect to the aggregator; ask its operator"
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
