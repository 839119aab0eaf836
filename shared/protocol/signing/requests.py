"""Signatures of requests: made, read and verified, in one canonical form.

HTTP Message Signatures (RFC 9421) by Ed25519 over method, path, query and the digest of the body (RFC 9530). Only one
form is written and read: one signature, these components and parameters in this order, each in canonical spelling. So
no data can hide in it.

The authority (host) is not signed, because a proxy or a forwarded port calls the aggregator by another name than the
client did. A signed host would prevent the replay of a request at another aggregator; so does a separate key pair for
each federation.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from http_message_signatures import (
    HTTPMessageSigner,
    HTTPMessageVerifier,
    InvalidSignature,
    MappingKeyResolver,
    algorithms,
)

from shared.errors import AuthenticationError
from shared.protocol.signing.keys import PrivateKey, PublicKey

DIGEST, INPUT, SIGNATURE = HEADERS = ("content-digest", "signature-input", "signature")
LABEL = "sig1"
NONCE_BYTES = 16
SECONDS_DIGITS = 10  # of a time between 2001 and 2286
ORIGIN = "http://unsigned"  # the library wants a whole URL; what it says of the host is not signed
PATH, QUERY = re.compile(r"/[^?#]*"), re.compile(r"[^#]*")  # or the library would read other parts of a URL in them
FORMS = {
    DIGEST: "sha-256=:44 CHARACTERS OF BASE64:",
    INPUT: f'{LABEL}=("@method" "@path" "@query" "content-digest");created=SECONDS;keyid="NAME";alg="ed25519";'
    'nonce="32 HEX DIGITS", without "@query" where there is none',
    SIGNATURE: f"{LABEL}=:88 CHARACTERS OF BASE64:",
}
PATTERNS = {
    DIGEST: re.compile(r"sha-256=:([A-Za-z0-9+/]{43}=):"),
    INPUT: re.compile(
        rf'{LABEL}=\("@method" "@path"(?P<query> "@query")? "content-digest"\);created=(?P<created>[1-9][0-9]{{0,11}});'
        r'keyid="(?P<name>[a-z0-9][a-z0-9_-]{0,62})";alg="ed25519";nonce="(?P<nonce>[0-9a-f]{32})"'
    ),
    SIGNATURE: re.compile(rf"{LABEL}=:([A-Za-z0-9+/]{{86}}==):"),
}


@dataclass(frozen=True)
class RequestTarget:
    """Method, path and query of a request, percent-encoded as sent."""

    method: str
    path: str
    query: str

    @staticmethod
    def of(method: str, raw: bytes) -> RequestTarget:
        """Splits raw path and query at the question mark."""
        path, _, query = raw.decode("latin-1").partition("?")
        return RequestTarget(method, path, query)

    @property
    def url(self) -> str:
        return f"{ORIGIN}{self.path}" + (f"?{self.query}" if self.query else "")


@dataclass(frozen=True)
class Signatory:
    """Client with its signing key."""

    name: str
    key: PrivateKey = field(repr=False)


@dataclass(frozen=True)
class SignatureClaim:
    """Claims of a signature's headers, unverified until `holds` is called.

    created: seconds since the epoch. digest: the body's, as `body_digest` writes it.
    """

    name: str
    created: int
    nonce: str
    digest: str
    has_query: bool
    headers: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True)
class _Message:
    """Request as the signature library sees it."""

    method: str
    url: str
    headers: dict[str, str]


class _SignatureVerifier(HTTPMessageVerifier):
    """Verifier of the signature alone; the caller checks the time."""

    def validate_created_and_expires(self, sig_input: object, max_age: object = None) -> None:
        del sig_input, max_age


def body_digest(sha256: bytes) -> str:
    """Writes the header Content-Digest of a body's sha256."""
    return f"sha-256=:{base64.b64encode(sha256).decode('ascii')}:"


def read_digest(header: str) -> bytes:
    """Reads the sha256 that `body_digest` has written."""
    found = PATTERNS[DIGEST].fullmatch(header)
    if found is None:
        raise _wrong_form(DIGEST)
    return base64.b64decode(found[1])


NO_BODY = body_digest(hashlib.sha256().digest())


def sign_request(target: RequestTarget, body: bytes, who: Signatory, *, created: int, nonce: str) -> dict[str, str]:
    """Signs a request; returns the three headers.

    created: seconds since the epoch. nonce: 32 hexadecimal digits, never the same twice.
    """
    covered = ("@method", "@path", *(("@query",) if target.query else ()), DIGEST)
    message = _Message(target.method, target.url, {})
    return add_signature(message, who.name, who.key, created, covered, nonce=nonce, body=body)


def add_signature(
    message: Any, name: str, key: PrivateKey, created: int, covered: tuple[str, ...], **more: Any
) -> dict[str, str]:
    """Signs a request or an answer of the library; returns its headers."""
    keys = MappingKeyResolver(public_keys={}, private_keys={name: key})
    HTTPMessageSigner(signature_algorithm=algorithms.ED25519, key_resolver=keys).sign(
        message,
        key_id=name,
        created=datetime.fromtimestamp(created, UTC),
        label=LABEL,
        covered_component_ids=covered,
        **more,
    )
    return {header.lower(): value for header, value in message.headers.items()}


def is_deterministic_signature(made: Mapping[str, str], target: RequestTarget, key: PrivateKey) -> bool:
    """Tells whether the signature is the only one that RFC 8032 gives for this key.

    Ed25519 follows from key and message alone. A signer who chooses the secret number himself makes signatures that
    verify too, and can hide 31 bytes in each.
    """
    parameters = made[INPUT].removeprefix(f"{LABEL}=")
    query = f'"@query": ?{target.query}\n' if target.query else ""
    lines = f'"@method": {target.method}\n"@path": {target.path}\n{query}"{DIGEST}": {made[DIGEST]}\n'
    expected = key.sign(f'{lines}"@signature-params": {parameters}'.encode())
    return made[SIGNATURE] == f"{LABEL}=:{base64.b64encode(expected).decode('ascii')}:"


def has_signature(message: Any, name: str, key: PublicKey) -> bool:
    """Tells whether the owner of this key has signed the request or answer."""
    keys = MappingKeyResolver(public_keys={name: key}, private_keys={})
    verifier = _SignatureVerifier(signature_algorithm=algorithms.ED25519, key_resolver=keys)
    try:
        verifier.verify(message, max_age=None)
    except InvalidSignature:
        return False
    return True


def signature_lengths(name: str, *, query: bool) -> dict[str, int]:
    """Returns the length of each of the three headers, the same for all requests."""
    written = _write_input(name, "0" * SECONDS_DIGITS, "0" * 2 * NONCE_BYTES, query=query)
    return {DIGEST: len(NO_BODY), INPUT: len(written), SIGNATURE: len(f"{LABEL}=::") + 88}


def _write_input(name: str, created: int | str, nonce: str, *, query: bool) -> str:
    """Writes the header Signature-Input in its one form."""
    covered = " ".join(f'"{one}"' for one in ("@method", "@path", *(("@query",) if query else ()), DIGEST))
    return f'{LABEL}=({covered});created={created};keyid="{name}";alg="ed25519";nonce="{nonce}"'


def rebuild_headers(name: str, created: int, nonce: str, sha256: bytes, value: str) -> dict[str, str]:
    """Rebuilds the headers of a request without a query from what is stored of them.

    value: `signature_value` of its claim.
    """
    made_input = _write_input(name, created, nonce, query=False)
    return {DIGEST: body_digest(sha256), INPUT: made_input, SIGNATURE: f"{LABEL}=:{value}:"}


def signature_value(claim: SignatureClaim) -> str:
    """Returns the signature alone, 88 characters of base64."""
    return claim.headers[SIGNATURE].removeprefix(f"{LABEL}=:").removesuffix(":")


def is_signed(headers: Iterable[str]) -> bool:
    """Tells whether a request has headers of a client's signature."""
    return not {INPUT, SIGNATURE}.isdisjoint(name.lower() for name in headers)


def find_signature_headers(headers: Iterable[tuple[str, str]]) -> dict[str, str] | None:
    """Returns the three headers of a signature; None unless each is there once."""
    found = [(name.lower(), value) for name, value in headers if name.lower() in HEADERS]
    return dict(found) if sorted(name for name, _ in found) == sorted(HEADERS) else None


def read_claim(headers: Iterable[tuple[str, str]]) -> SignatureClaim:
    """Reads the claims of a signature's headers.

    Raises AuthenticationError, without their content, for any other form.
    """
    if (one := find_signature_headers(headers)) is None:
        raise AuthenticationError(f"expected the headers {', '.join(HEADERS)}, each once")
    for name in (DIGEST, SIGNATURE):
        _require_base64(name, one[name])
    said = PATTERNS[INPUT].fullmatch(one[INPUT])
    if said is None:
        raise _wrong_form(INPUT)
    return SignatureClaim(
        said["name"], int(said["created"]), said["nonce"], one[DIGEST], said["query"] is not None, one
    )


def _require_base64(name: str, value: str) -> None:
    """Raises AuthenticationError for base64 in another than its canonical spelling.

    The last character of base64 holds bits without meaning, which must be zero.
    """
    found = PATTERNS[name].fullmatch(value)
    if found is None or base64.b64encode(base64.b64decode(found[1])).decode("ascii") != found[1]:
        raise _wrong_form(name)


def _wrong_form(name: str) -> AuthenticationError:
    return AuthenticationError(f"{name}: expected {FORMS[name]}; got another form")


def is_valid_claim(claim: SignatureClaim, target: RequestTarget, key: PublicKey) -> bool:
    """Tells whether the owner of `key` has signed exactly this request."""
    if not PATH.fullmatch(target.path) or not QUERY.fullmatch(target.query) or claim.has_query != bool(target.query):
        return False
    return has_signature(_Message(target.method, target.url, dict(claim.headers)), claim.name, key)
