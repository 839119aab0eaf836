"""Canonical head of a client's request: its headers, their values, and its length.

The gate writes this form and the aggregator refuses any other: anything more could carry data.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from shared.protocol.signing import requests
from shared.protocol.wire import MEDIA_TYPE

USER_AGENT = "lpsfed-client"
HOST, TYPE, LENGTH, CONNECTION = "host", "content-type", "content-length", "connection"
CONSTANT = {"accept": "*/*", "accept-encoding": "identity", CONNECTION: "keep-alive", "user-agent": USER_AGENT}
MEDIA_TYPES = (MEDIA_TYPE, "application/json")
SIZE = re.compile(r"0|[1-9][0-9]{0,11}")
NAMED_HOST = re.compile(r"[A-Za-z0-9_.-]{1,253}(?::[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](?::[0-9]{1,5})?")
NUMBER = r"(?:0|[1-9][0-9]{0,11})(?:\.[0-9]{0,5}[1-9])?"  # in its one spelling
WORDS = {
    HOST: NAMED_HOST,
    **{name: re.compile(re.escape(value)) for name, value in CONSTANT.items()},
    TYPE: re.compile("|".join(map(re.escape, MEDIA_TYPES))),
    LENGTH: SIZE,
    **requests.PATTERNS,
}
"""Every header that a client's request may have, and what may stand in it."""
RESPELLED = re.compile(r"%|/rounds/(?!(?:0|[1-9][0-9]{0,11})(?:/|$))")
"""In a path: what routes take for another spelling of the same. Any other path is a call of its own, or none."""
NUMBERED = re.compile(rf"(?!(?:wait|after)=)[^&]*|[a-z]+={NUMBER}")
"""A part of a query that is declared has a number in its one spelling; any other one is refused by its route."""
UNSIGNED = frozenset(requests.HEADERS)
Header = tuple[str, str]


@dataclass(frozen=True)
class RequestHead:
    """Head of a call: first line, host, and the body's type and length."""

    method: str
    target: str
    host: str
    media: str | None = None
    length: int | None = None

    def headers(self) -> list[Header]:
        """Lists the headers in order, without the signature's."""
        of_body = {TYPE: self.media, LENGTH: None if self.length is None else str(self.length)}
        every = {HOST: self.host, **CONSTANT, **of_body}
        return [(name, value) for name, value in every.items() if value is not None]

    def digest(self) -> str:
        return head_digest(self.method, self.target, self.headers())

    def size(self, client: str) -> int:
        """Returns the bytes of the signed head: all signatures of a client are equally long."""
        signature = requests.signature_lengths(client, query="?" in self.target)
        return head_size(self.method, self.target, self.headers()) + sum(
            len(one) + signature[one] + 4 for one in signature
        )


def head_size(method: str, target: str, headers: Iterable[Header]) -> int:
    """Returns the bytes of a head as HTTP/1.1 writes it."""
    first, fields = len(f"{method} {target} HTTP/1.1\r\n".encode("latin-1")), list(headers)
    return first + sum(map(len, chain.from_iterable(fields))) + 4 * len(fields) + 2


def head_digest(method: str, target: str, headers: Iterable[Header]) -> str:
    """Computes the sha256 of a head without its signature and its connection header."""
    kept = sorted((name, value) for name, value in headers if name not in UNSIGNED and name != CONNECTION)
    lines = [f"{method} {target}", *(f"{name}: {value}" for name, value in kept)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def is_canonical_target(path: str, query: str) -> bool:
    """Tells whether path and query are in their canonical spelling."""
    return RESPELLED.search(path) is None and all(NUMBERED.fullmatch(part) for part in query.split("&"))


def replace_library_headers(headers: Iterable[Header]) -> list[Header]:
    """Replaces a library's own headers by a client's constants, in small letters."""
    said = [(name.lower(), value) for name, value in headers]
    return [(name, CONSTANT.get(name, value)) for name, value in said]
