"""Signatures of requests: made, read and verified, in one canonical form.

HTTP Message Signatures (RFC 9421) by Ed25519 over method, path, query and the digest of the body (RFC 9530). Only one
form is written and read: one signature, these components and parameters in this order, each in canonical spelling. So
no data can hide in it.

The authority (host) is not signed, because a proxy or a forwarded port calls the aggregator by another name than the
client did. A signed host would prevent the replay of a request at another aggregator; so does a separate key pair for
each federation.

One form needs no general library of RFC 9421, which would parse and write it anew four times a call. A test compares
every byte and verdict with one. Of what it takes, this refuses: other components, parameters, labels or spellings;
a header twice; a method with small letters, spaces or separators; a fragment.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from shared.errors import AuthenticationError, ProtocolError
from shared.protocol.signing.keys import PrivateKey, PublicKey, is_made_by

DIGEST, INPUT, SIGNATURE = HEADERS = ("content-digest", "signature-input", "signature")
LABEL = "sig1"
NONCE_BYTES = 16
SECONDS_DIGITS = 10  # of a time between 2001 and 2286
OF_PATH = r"[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2}"  # RFC 3986, 3.3; a query may have question marks, too
METHOD = re.compile(r"[A-Z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110, 5.6.2, without small letters
PATH, QUERY = re.compile(rf"/(?:{OF_PATH})*"), re.compile(rf"(?:{OF_PATH}|\?)*")
FORMS = {
    DIGEST: "sha-256=:44 CHARACTERS OF BASE64:",
    INPUT: f'{LABEL}=("@method" "@path" "@query" "content-digest");created=SECONDS;keyid="NAME";alg="ed25519";'
    'nonce="32 HEX DIGITS", without "@query" where there is none',
    SIGNATURE: f"{LABEL}=:88 CHARACTERS OF BASE64:",
}
PATTERNS = {
    DIGEST: re.compile(r"sha-256=:([A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]=):"),
    INPUT: re.compile(
        rf'{LABEL}=\("@method" "@path"(?P<query> "@query")? "content-digest"\);created=(?P<created>[1-9][0-9]{{0,11}});'
        r'keyid="(?P<name>[a-z0-9][a-z0-9_-]{0,62})";alg="ed25519";nonce="(?P<nonce>[0-9a-f]{32})"'
    ),
    SIGNATURE: re.compile(rf"{LABEL}=:([A-Za-z0-9+/]{{85}}[AQgw]==):"),
}
"""The last character of base64 holds bits without meaning, which must be zero: no value has a second spelling."""


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


@dataclass(frozen=True)
class Signatory:
    """Client with its signing key."""

    name: str
    key: PrivateKey = field(repr=False)


@dataclass(frozen=True)
class SignatureClaim:
    """Claims of a signature's headers, which `is_valid_claim` verifies.

    created: seconds since the epoch. digest: the body's, as `body_digest` writes it.
    """

    name: str
    created: int
    nonce: str
    digest: str
    has_query: bool
    headers: Mapping[str, str] = field(repr=False)


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

    created: seconds since the epoch. nonce: 32 hexadecimal digits, never the same twice. Raises ProtocolError for
    anything that `is_valid_claim` or `read_claim` would not take.
    """
    if not _is_signable(target):
        raise ProtocolError("expected a method in capitals, and path and query in characters of a URL, got others")
    digest, said = body_digest(hashlib.sha256(body).digest()), _write_input(who.name, created, nonce, target.query)
    if not PATTERNS[INPUT].fullmatch(said):
        raise ProtocolError("expected a client's name, seconds since the epoch and a nonce of 32 digits, got others")
    signature = who.key.sign(_signature_base(target, digest, said))
    return {DIGEST: digest, INPUT: said, SIGNATURE: write_signature(signature)}


def is_deterministic_signature(made: Mapping[str, str], target: RequestTarget, key: PrivateKey) -> bool:
    """Tells whether the signature is the only one that RFC 8032 gives for this key.

    Ed25519 follows from key and message alone. A signer who chooses the secret number himself makes signatures that
    verify too, and can hide 31 bytes in each.
    """
    return made[SIGNATURE] == write_signature(key.sign(_signature_base(target, made[DIGEST], made[INPUT])))


def _is_signable(target: RequestTarget) -> bool:
    """Tells whether a target has the characters of RFC 9110 and RFC 3986 alone."""
    return bool(METHOD.fullmatch(target.method) and PATH.fullmatch(target.path) and QUERY.fullmatch(target.query))


def _signature_base(target: RequestTarget, digest: str, said: str) -> bytes:
    """Writes what is signed of a request (RFC 9421, 2.5).

    digest, said: the headers Content-Digest and Signature-Input.
    """
    query = f'"@query": ?{target.query}\n' if target.query else ""
    lines = f'"@method": {target.method}\n"@path": {target.path}\n{query}"{DIGEST}": {digest}\n'
    return f'{lines}"@signature-params": {said.removeprefix(f"{LABEL}=")}'.encode()


def write_signature(signature: bytes) -> str:
    """Writes the header Signature."""
    return f"{LABEL}=:{base64.b64encode(signature).decode('ascii')}:"


def is_signature_of(header: str, content: bytes, key: PublicKey) -> bool:
    """Tells whether the header Signature is of this content, by the owner of this key."""
    found = PATTERNS[SIGNATURE].fullmatch(header)
    return found is not None and is_made_by(key, base64.b64decode(found[1]), content)


def signature_lengths(name: str, *, query: bool) -> dict[str, int]:
    """Returns the length of each of the three headers, the same for all requests."""
    written = _write_input(name, "0" * SECONDS_DIGITS, "0" * 2 * NONCE_BYTES, "?" if query else "")
    return {DIGEST: len(NO_BODY), INPUT: len(written), SIGNATURE: len(f"{LABEL}=::") + 88}


def _write_input(name: str, created: int | str, nonce: str, query: str) -> str:
    """Writes the header Signature-Input in its one form."""
    component = ' "@query"' if query else ""
    covered = f'"@method" "@path"{component} "{DIGEST}"'
    return f'{LABEL}=({covered});created={created};keyid="{name}";alg="ed25519";nonce="{nonce}"'


def rebuild_headers(name: str, created: int, nonce: str, sha256: bytes, value: str) -> dict[str, str]:
    """Rebuilds the headers of a request without a query from what is stored of them.

    value: `signature_value` of its claim.
    """
    made_input = _write_input(name, created, nonce, query="")
    return {DIGEST: body_digest(sha256), INPUT: made_input, SIGNATURE: f"{LABEL}=:{value}:"}


def signature_value(claim: SignatureClaim) -> str:
    """Returns the signature alone, 88 characters of base64."""
    return claim.headers[SIGNATURE].removeprefix(f"{LABEL}=:").removesuffix(":")


def is_signed(headers: Iterable[str]) -> bool:
    """Tells whether a request has headers of a client's signature."""
    return not {INPUT, SIGNATURE}.isdisjoint(map(str.lower, headers))


def find_signature_headers(headers: Iterable[tuple[str, str]]) -> dict[str, str] | None:
    """Returns the three headers of a signature; None unless each is there once."""
    found = [(name, value) for one, value in headers if (name := one.lower()) in HEADERS]
    one = dict(found)
    return one if len(one) == len(found) == len(HEADERS) else None


def read_claim(headers: Iterable[tuple[str, str]]) -> SignatureClaim:
    """Reads the claims of a signature's headers.

    Raises AuthenticationError, without their content, for any other form.
    """
    if (one := find_signature_headers(headers)) is None:
        raise AuthenticationError(f"expected the headers {', '.join(HEADERS)}, each once")
    for name in (DIGEST, SIGNATURE):
        if PATTERNS[name].fullmatch(one[name]) is None:
            raise _wrong_form(name)
    said = PATTERNS[INPUT].fullmatch(one[INPUT])
    if said is None:
        raise _wrong_form(INPUT)
    return SignatureClaim(
        said["name"], int(said["created"]), said["nonce"], one[DIGEST], said["query"] is not None, one
    )


def _wrong_form(name: str) -> AuthenticationError:
    return AuthenticationError(f"{name}: expected {FORMS[name]}; got another form")


def is_valid_claim(claim: SignatureClaim, target: RequestTarget, key: PublicKey) -> bool:
    """Tells whether the owner of `key` has signed exactly this request."""
    if not _is_signable(target) or claim.has_query != bool(target.query):
        return False
    base = _signature_base(target, claim.digest, claim.headers[INPUT])
    return is_signature_of(claim.headers[SIGNATURE], base, key)
