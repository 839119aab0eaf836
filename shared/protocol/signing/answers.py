"""The aggregator's key and an answer -> three headers that say who has given it, to which request; and those, checked.

HTTP Message Signatures (RFC 9421) by Ed25519 over the status, the digest of the body (RFC 9530) and the signature of
the request that is answered, which nobody has made twice. So an answer can be neither changed, nor made up, nor given
to another request. As with requests one form alone is written and read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from http_message_signatures import (
    HTTPMessageSigner,
    HTTPMessageVerifier,
    InvalidSignature,
    MappingKeyResolver,
    algorithms,
)

from shared.errors import UnavailableError
from shared.protocol.signing.keys import PrivateKey, PublicKey, raw_hex
from shared.protocol.signing.messages import DIGEST, HEADERS, INPUT, LABEL, SIGNATURE, body_digest

COVERED = ("@status", DIGEST, f'"{SIGNATURE}";req')
FORM = re.compile(
    rf'{LABEL}=\("@status" "{DIGEST}" "{SIGNATURE}";req\);created=[1-9][0-9]{{0,11}};'
    r'keyid="([0-9a-f]{64})";alg="ed25519"'
)


@dataclass(frozen=True)
class _Request:
    """What an answer's signature covers of its request."""

    headers: dict[str, str]
    method: str = "GET"
    url: str = "http://unsigned"


@dataclass(frozen=True)
class _Answer:
    """An answer as the library sees it."""

    status_code: int
    headers: dict[str, str]
    request: _Request


class _AnswerVerifier(HTTPMessageVerifier):
    """Of the signature alone: the request's own nonce says that the answer is of now."""

    def validate_created_and_expires(self, sig_input: object, max_age: object = None) -> None:
        del sig_input, max_age


def sign_answer(status: int, sha256: bytes, request_signature: str, key: PrivateKey, *, created: int) -> dict[str, str]:
    """The three headers of an answer. `sha256`: of its body; `request_signature`: that header of the request."""
    name = raw_hex(key.public_key())
    answer = _Answer(status, {DIGEST: body_digest(sha256)}, _Request({SIGNATURE: request_signature}))
    keys = MappingKeyResolver(public_keys={}, private_keys={name: key})
    HTTPMessageSigner(signature_algorithm=algorithms.ED25519, key_resolver=keys).sign(
        answer,
        key_id=name,
        created=datetime.fromtimestamp(created, UTC),
        label=LABEL,
        covered_component_ids=COVERED,
        use_existing_digest=True,
    )
    return {name.lower(): value for name, value in answer.headers.items()}


def read_signer(headers: Iterable[tuple[str, str]]) -> str:
    """The public key, in hexadecimal, that an answer names as its signer's. UnavailableError for another form."""
    found = FORM.fullmatch(_one_form(headers)[INPUT])
    if found is None:
        raise UnavailableError("expected an answer that the aggregator has signed, got another form of signature")
    return found[1]


def require_answer(
    status: int, headers: Iterable[tuple[str, str]], sha256: bytes, request_signature: str, key: PublicKey
) -> None:
    """UnavailableError unless the owner of this key has given this answer to this very request.

    Whoever stands on the way, a proxy or an impostor, says nothing that is worth more than silence.
    """
    one = _one_form(headers)
    if read_signer(one.items()) != raw_hex(key) or one[DIGEST] != body_digest(sha256):
        raise UnavailableError("expected an answer that the aggregator has signed, got one by another key or changed")
    keys = MappingKeyResolver(public_keys={raw_hex(key): key}, private_keys={})
    verifier = _AnswerVerifier(signature_algorithm=algorithms.ED25519, key_resolver=keys)
    try:
        verifier.verify(_Answer(status, one, _Request({SIGNATURE: request_signature})), max_age=None)
    except InvalidSignature:
        raise UnavailableError("expected an answer that the aggregator has signed, got another signature") from None


def _one_form(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    values: dict[str, list[str]] = {name: [] for name in HEADERS}
    for name, value in headers:
        values.get(name.lower(), []).append(value)
    if any(len(found) != 1 for found in values.values()):
        raise UnavailableError(f"expected an answer with the headers {', '.join(HEADERS)}, each once")
    return {name: found[0] for name, found in values.items()}
