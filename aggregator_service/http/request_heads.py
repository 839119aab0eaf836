"""Check of request heads, and their record in the audit log.

One form is accepted, everything else is refused.

A proxy that the operator trusts changes spaces and capital letters, and may add headers of a list, whose names and
sizes are recorded. Nobody else may add any.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import lru_cache

from starlette.datastructures import Headers
from starlette.types import Scope

from shared.errors import HeadError, MediaTypeError
from shared.protocol import request_heads as heads
from shared.protocol.schemas import HeaderOut, HeadOut, SignatureOut
from shared.protocol.signing.requests import SignatureClaim, read_digest, signature_value
from shared.web.raw_heads import find_raw_head

FROM_PROXIES = frozenset(
    {f"x-forwarded-{what}" for what in ("for", "host", "port", "prefix", "proto", "scheme", "server")}
    | {"forwarded", "via", "x-real-ip", "x-request-id", "x-scheme", "x-original-forwarded-for"}
    | {"traceparent", "tracestate"}
)
MOST_ADDED = 1024  # bytes of one header that a proxy has added
MOST_LISTED = 16  # headers beyond the list in one row of the audit log
MOST_HOSTS = 4  # names by which one client calls, since the aggregator's start
BY_PROXY = {"connection": re.compile("close|keep-alive"), "transfer-encoding": re.compile("chunked")}
REQUIRED = frozenset({heads.HOST, *heads.CONSTANT})
OWN_NAMES = frozenset(heads.WORDS)
WITH_PROXIES = OWN_NAMES | FROM_PROXIES | BY_PROXY.keys()
WORDS_BY_PROXY = heads.WORDS | BY_PROXY
PLAIN = re.compile(r"[a-z0-9-]{1,40}")
UNPLAIN = "(a name with other characters)"


class RequestHeads:
    """Checks request heads.

    `trusted`: addresses and networks of the proxies before the aggregator.
    """

    def __init__(self, trusted: Iterable[str]) -> None:
        self._trusted = tuple(ipaddress.ip_network(one) for one in trusted)
        self._hosts: defaultdict[str, set[str]] = defaultdict(set)

    def require_declared_head(self, scope: Scope, headers: list[heads.Header], client: str) -> None:
        """Raises HeadError, which repeats no value, for a head that no genuine client sends.

        headers: the scope's as text.
        """
        proxied = self._is_proxied(scope)
        respelled = proxied or find_raw_head(scope) is None
        _require_names(headers, proxied=respelled)
        _require_words(headers, proxied=respelled)
        if not heads.is_canonical_target(*_target(scope).partition("?")[::2]):
            raise HeadError("expected path and query in canonical spelling, got another")
        if not proxied:
            _require_spelling(scope, headers)
        self._require_host(client, dict(headers).get(heads.HOST, ""))

    def recorded_head(self, scope: Scope, claim: SignatureClaim | None) -> HeadOut:
        """Describes a head for the audit log: size, digest, signature and headers beyond the list.

        The size is known where no proxy has changed the head.
        """
        headers, raw = Headers(scope=scope).items(), find_raw_head(scope)
        listed = [(name, value) for name, value in headers if name in heads.WORDS]
        computed = heads.head_size(scope["method"], _target(scope), headers)
        size = None if self._is_proxied(scope) else computed if raw is None else raw.bytes
        others = tuple(_other_header(name, value) for name, value in headers if name not in {*heads.WORDS, *BY_PROXY})
        digest = heads.head_digest(scope["method"], _target(scope), listed)
        more = max(0, len(others) - MOST_LISTED)
        signature = None if claim is None else _signature_record(claim)
        return HeadOut(bytes=size, sha256=digest, others=others[:MOST_LISTED], more=more, signature=signature)

    def _is_proxied(self, scope: Scope) -> bool:
        """Tells whether a trusted proxy has connected; the scope's client is then the proxy's caller."""
        raw = find_raw_head(scope)
        if raw is None or raw.peer is None or not self._trusted:
            return False
        try:
            peer = ipaddress.ip_address(raw.peer)
        except ValueError:
            return False
        return any(peer in network for network in self._trusted if network.version == peer.version)

    def _require_host(self, client: str, host: str) -> None:
        """Raises HeadError for a host beyond the few names by which this client has called.

        The host is not signed, so it could be another word each time.
        """
        known = self._hosts[client]
        known.add(host) if len(known) < MOST_HOSTS else None
        if host not in known:
            raise HeadError(f"host: expected one of the {MOST_HOSTS} names by which this client calls, got another")


def _require_names(headers: Iterable[heads.Header], *, proxied: bool) -> None:
    if (fault := _find_fault(tuple([name for name, _ in headers]), proxied=proxied)) is not None:
        raise HeadError(fault)


@lru_cache(maxsize=256)  # every call of a client has the same names
def _find_fault(names: tuple[str, ...], *, proxied: bool) -> str | None:
    """Describes names of headers that no client sends, or None."""
    counts = Counter(names)
    allowed = WITH_PROXIES if proxied else OWN_NAMES
    if strange := [name for name in counts if name not in allowed]:
        return f"expected only the headers of a client, got {len(strange)} more: {_listed_names(strange)}"
    if twice := [name for name, count in counts.items() if count > 1 and name in heads.WORDS]:
        return f"expected each header once, got twice: {_listed_names(twice)}"
    if not proxied and (missing := sorted(REQUIRED - counts.keys())):
        return f"expected every header that a client sends, got none of: {', '.join(missing)}"
    return None


def _require_words(headers: Iterable[heads.Header], *, proxied: bool) -> None:
    words = WORDS_BY_PROXY if proxied else heads.WORDS
    for name, value in headers:
        if name not in words and len(value) > MOST_ADDED:
            raise HeadError(f"{name}: expected at most {MOST_ADDED} bytes that a proxy adds, got more")
        if name in words and not words[name].fullmatch(value):
            if name == heads.TYPE:
                raise MediaTypeError(f"expected {' or '.join(heads.MEDIA_TYPES)}, got another media type")
            raise HeadError(f"{name}: expected a value that a client sends, got another")


def _require_spelling(scope: Scope, headers: list[heads.Header]) -> None:
    if scope["http_version"] != "1.1":
        raise HeadError("expected HTTP/1.1, got another version")
    raw = find_raw_head(scope)
    if raw is None:
        return
    if not _are_spelled(raw.names):
        raise HeadError("expected header names in small letters, or with a capital for each word, got others")
    if raw.bytes != (size := heads.head_size(scope["method"], _target(scope), headers)):
        raise HeadError(f"expected a head of {size} bytes, without extra spaces, got {raw.bytes}")


@lru_cache(maxsize=256)  # every call of a client has the same names
def _are_spelled(names: tuple[str, ...]) -> bool:
    """Tells whether names are in small letters, or with a capital for each word."""
    return all(name in (name.lower(), name.title()) for name in names)


def _target(scope: Scope) -> str:
    query: str = scope["query_string"].decode("latin-1")
    path: str = scope["raw_path"].decode("latin-1")
    return path + (f"?{query}" if query else "")


def _listed_names(names: list[str]) -> str:
    shown = [name if PLAIN.fullmatch(name) else UNPLAIN for name in names[:MOST_LISTED]]
    return ", ".join(shown)


def _signature_record(claim: SignatureClaim) -> SignatureOut:
    sha256 = read_digest(claim.digest).hex()
    return SignatureOut(created=claim.created, sha256=sha256, value=signature_value(claim))


def _other_header(name: str, value: str) -> HeaderOut:
    return HeaderOut(name=name if PLAIN.fullmatch(name) else UNPLAIN, bytes=len(name) + len(value))
