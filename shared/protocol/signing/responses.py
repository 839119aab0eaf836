"""Signatures of the aggregator's answers: made, read and verified.

HTTP Message Signatures (RFC 9421) by Ed25519 over the status, the digest of the body (RFC 9530) and the signature of
the request that is answered, which is unique. So an answer can be neither changed, nor made up, nor given to another
request. As with requests one form alone is written and read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from shared.errors import ProtocolError, UnavailableError
from shared.protocol.signing.keys import PrivateKey, PublicKey, raw_hex
from shared.protocol.signing.requests import (
    DIGEST,
    HEADERS,
    INPUT,
    LABEL,
    SIGNATURE,
    body_digest,
    find_signature_headers,
    is_signature_of,
    write_signature,
)

FORM = re.compile(
    rf'{LABEL}=\("@status" "{DIGEST}" "{SIGNATURE}";req\);created=[1-9][0-9]{{0,11}};'
    r'keyid="([0-9a-f]{64})";alg="ed25519"'
)


def sign_answer(status: int, sha256: bytes, request_signature: str, key: PrivateKey, *, created: int) -> dict[str, str]:
    """Signs an answer; returns its three headers.

    sha256: of its body. request_signature: that header of the request.
    """
    covered = f'("@status" "{DIGEST}" "{SIGNATURE}";req)'
    said = f'{LABEL}={covered};created={created};keyid="{_public_hex(key)}";alg="ed25519"'
    digest = body_digest(sha256)
    signature = key.sign(_signature_base(status, digest, request_signature, said))
    return {DIGEST: digest, INPUT: said, SIGNATURE: write_signature(signature)}


@lru_cache(maxsize=4)  # an aggregator has one key; deriving its public half takes as long as half a signature
def _public_hex(key: PrivateKey) -> str:
    return raw_hex(key.public_key())


def _signature_base(status: int, digest: str, request_signature: str, said: str) -> bytes:
    """Writes what is signed of an answer (RFC 9421, 2.5).

    digest, said: the answer's headers Content-Digest and Signature-Input. Raises ProtocolError for a request's
    signature of several lines or with spaces around it, which could be taken for another component.
    """
    one = request_signature
    if not (one.isascii() and one.isprintable()) or one != one.strip(" "):
        raise ProtocolError("expected the signature of a request in one line, got another form")
    lines = f'"@status": {status}\n"{DIGEST}": {digest}\n"{SIGNATURE}";req: {request_signature}\n'
    return f'{lines}"@signature-params": {said.removeprefix(f"{LABEL}=")}'.encode()


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
    base = _signature_base(status, one[DIGEST], request_signature, one[INPUT])
    if not is_signature_of(one[SIGNATURE], base, key):
        raise UnavailableError("expected an answer signed by the aggregator, got another signature")


def _one_form(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    if (one := find_signature_headers(headers)) is None:
        raise UnavailableError(f"expected an answer with the headers {', '.join(HEADERS)}, each once")
    return one
