"""Signatures of the aggregator's answers: made, read and verified.

HTTP Message Signatures (RFC 9421) by Ed25519 over the status, the digest of the body (RFC 9530) and the signature of
the request that is answered, which is unique. So an answer can be neither changed, nor made up, nor given to another
request. As with requests one form alone is written and read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from shared.errors import UnavailableError
from shared.protocol.signing.keys import PrivateKey, PublicKey, raw_hex
from shared.protocol.signing.requests import (
    DIGEST,
    HEADERS,
    INPUT,
    LABEL,
    SIGNATURE,
    add_signature,
    body_digest,
    find_signature_headers,
    has_signature,
)

COVERED = ("@status", DIGEST, f'"{SIGNATURE}";req')
FORM = re.compile(
    rf'{LABEL}=\("@status" "{DIGEST}" "{SIGNATURE}";req\);created=[1-9][0-9]{{0,11}};'
    r'keyid="([0-9a-f]{64})";alg="ed25519"'
)


@dataclass(frozen=True)
class _Request:
    """Part of the request that an answer's signature covers."""

    headers: dict[str, str]
    method: str = "GET"
    url: str = "http://unsigned"


@dataclass(frozen=True)
class _Answer:
    """Answer as the signature library sees it."""

    status_code: int
    headers: dict[str, str]
    request: _Request


def sign_answer(status: int, sha256: bytes, request_signature: str, key: PrivateKey, *, created: int) -> dict[str, str]:
    """Signs an answer; returns its three headers.

    sha256: of its body. request_signature: that header of the request.
    """
    name = raw_hex(key.public_key())
    answer = _Answer(status, {DIGEST: body_digest(sha256)}, _Request({SIGNATURE: request_signature}))
    return add_signature(answer, name, key, created, COVERED, use_existing_digest=True)


def read_signer(headers: Iterable[tuple[str, str]]) -> str:
    """Returns the public key, in hexadecimal, that an answer names as its signer.

    Raises UnavailableError for another form.
    """
    found = FORM.fullmatch(_one_form(headers)[INPUT])
    if found is None:
        raise UnavailableError("expected an answer signed by the aggregator, got another form of signature")
    return found[1]


def require_answer(
    status: int, headers: Iterable[tuple[str, str]], sha256: bytes, request_signature: str, key: PublicKey
) -> None:
    """Raises UnavailableError unless this key's owner gave this answer to this request.

    What a proxy or an impostor says counts no more than silence.
    """
    one = _one_form(headers)
    if read_signer(one.items()) != raw_hex(key) or one[DIGEST] != body_digest(sha256):
        raise UnavailableError("expected an answer signed by the aggregator, got one by another key or changed")
    if not has_signature(_Answer(status, one, _Request({SIGNATURE: request_signature})), raw_hex(key), key):
        raise UnavailableError("expected an answer signed by the aggregator, got another signature")


def _one_form(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    if (one := find_signature_headers(headers)) is None:
        raise UnavailableError(f"expected an answer with the headers {', '.join(HEADERS)}, each once")
    return one
