"""Signed requests: RFC 9421's own example, the one form that is read, and not one byte that may be another."""

from __future__ import annotations

import base64
import hashlib
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from http_message_signatures import HTTPMessageSigner, MappingKeyResolver, algorithms
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import AuthenticationError, ProtocolError
from shared.protocol.signing.keys import new_key
from shared.protocol.signing.requests import (
    NO_BODY,
    RequestTarget,
    Signatory,
    body_digest,
    is_signed,
    is_valid_claim,
    read_claim,
    sign_request,
)

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
EAST = Signatory("east", KEY)
POLL = RequestTarget("GET", "/v1/runs/current", "wait=20&after=3")
UPDATE = RequestTarget("PUT", "/v1/runs/run-1/rounds/1/clients/east/update", "")
NONCE = "0123456789abcdef" * 2
SECONDS = 1_700_000_000
SIGNED = sign_request(POLL, b"", EAST, created=SECONDS, nonce=NONCE)
INPUT = SIGNED["signature-input"]


class Message:
    """A request as the library takes it."""

    def __init__(self, method: str, url: str, headers: dict[str, str]) -> None:
        self.method, self.url, self.headers = method, url, headers


def test_the_library_signs_the_rfc_s_own_request_as_the_rfc_does() -> None:
    """RFC 9421, B.2.6, with the key of B.1.4. Ed25519 gives the same signature every time."""
    private = base64.b64decode("n4Ni+HpISpVObnQMW0wOhCKROaIKqKtW/2ZYb2p9KcU=")
    keys = MappingKeyResolver(
        public_keys={}, private_keys={"test-key-ed25519": Ed25519PrivateKey.from_private_bytes(private)}
    )
    request = Message(
        "POST",
        "https://example.com/foo?param=Value&Pet=dog",
        {"Date": "Tue, 20 Apr 2021 02:07:55 GMT", "Content-Type": "application/json", "Content-Length": "18"},
    )
    covered = ("date", "@method", "@path", "@authority", "content-type", "content-length")
    HTTPMessageSigner(signature_algorithm=algorithms.ED25519, key_resolver=keys).sign(
        request,
        key_id="test-key-ed25519",
        created=datetime.fromtimestamp(1618884473, UTC),
        label="sig-b26",
        include_alg=False,
        covered_component_ids=covered,
    )
    said = "wqcAqbmYJ2ji2glfAMaRy4gruYYnx2nEFN2HN6jrnDnQCK1u02Gb04v9EDgwUPiu4A0w6vuQv5lIp5WPpBKRCw=="
    assert request.headers["Signature"] == f"sig-b26=:{said}:"


@pytest.mark.parametrize(
    ("target", "body"), [(POLL, b""), (UPDATE, b"an update"), (RequestTarget("POST", "/", ""), b"{}")]
)
def test_what_is_signed_is_what_the_rfc_says_word_for_word(target: RequestTarget, body: bytes) -> None:
    """The base is written out here and held against the signature without the library."""
    headers = sign_request(target, body, EAST, created=SECONDS, nonce=NONCE)
    digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
    components = ["@method", "@path", *(["@query"] if target.query else []), "content-digest"]
    values = [target.method, target.path, *([f"?{target.query}"] if target.query else []), f"sha-256=:{digest}:"]
    inner = " ".join(f'"{one}"' for one in components)
    said = f'({inner});created={SECONDS};keyid="east";alg="ed25519";nonce="{NONCE}"'
    lines = [f'"{name}": {value}' for name, value in zip(components, values, strict=True)]
    base = "\n".join([*lines, f'"@signature-params": {said}'])
    signature = base64.b64encode(KEY.sign(base.encode())).decode()
    assert headers == {
        "content-digest": f"sha-256=:{digest}:",
        "signature-input": f"sig1={said}",
        "signature": f"sig1=:{signature}:",
    }


def test_a_signed_request_is_read_and_holds() -> None:
    claim = read_claim(SIGNED.items())
    assert (claim.name, claim.created, claim.nonce, claim.digest) == ("east", SECONDS, NONCE, NO_BODY)
    assert is_valid_claim(claim, POLL, KEY.public_key()) and not is_valid_claim(claim, POLL, new_key().public_key())
    assert is_signed(SIGNED) and is_signed(["Signature"]) and not is_signed(["content-digest", "authorization"])
    assert "sig1" not in repr(claim) and "Private" not in repr(EAST)


@pytest.mark.parametrize(
    "other",
    [
        replace(POLL, method="PUT"),
        replace(POLL, path="/v1/runs/run-1/model"),
        replace(POLL, path="/v1/runs/current/"),
        replace(POLL, query="wait=20"),
        replace(POLL, query=""),
        replace(POLL, query="after=3&wait=20"),
        replace(POLL, path="/v1/runs/%63urrent"),
        replace(POLL, path="/v1/runs/current#x"),
        replace(POLL, query="wait=20&after=3#x"),
        RequestTarget("GET", "/v1/runs/current?wait=20&after=3", ""),
        RequestTarget("GET", "@elsewhere/v1/runs/current", POLL.query),
        RequestTarget("GET", "", POLL.query),
        RequestTarget("GET", "*", POLL.query),
        RequestTarget("GET", "/v1/runs/\u00e9", POLL.query),
        replace(POLL, method="get"),
    ],
)
def test_for_another_request_it_does_not_hold(other: RequestTarget) -> None:
    assert not is_valid_claim(read_claim(SIGNED.items()), other, KEY.public_key())


def test_a_query_that_is_there_must_be_signed() -> None:
    without = sign_request(replace(POLL, query=""), b"", EAST, created=SECONDS, nonce=NONCE)
    assert not is_valid_claim(read_claim(without.items()), POLL, KEY.public_key())


def test_the_digest_is_the_body_s() -> None:
    headers = sign_request(UPDATE, b"an update", EAST, created=SECONDS, nonce=NONCE)
    claim = read_claim(headers.items())
    assert claim.digest == body_digest(hashlib.sha256(b"an update").digest()) != NO_BODY
    swapped = read_claim((headers | {"content-digest": NO_BODY}).items())
    assert not is_valid_claim(swapped, UPDATE, KEY.public_key())


def changed(name: str, *change: str) -> dict[str, str]:
    return SIGNED | {name: SIGNED[name].replace(*change)}


OTHER_FORMS: dict[str, Any] = {
    "another order": changed("signature-input", '"@method" "@path"', '"@path" "@method"'),
    "a component less": changed("signature-input", ' "content-digest"', ""),
    "a component more": changed("signature-input", "content-digest", 'content-digest" "host'),
    "a component twice": changed("signature-input", '"@method"', '"@method" "@method"'),
    "a component of a part": changed("signature-input", '"@query"', '"@query-param";name="wait"'),
    "another algorithm": changed("signature-input", "ed25519", "hmac-sha256"),
    "no algorithm": changed("signature-input", ';alg="ed25519"', ""),
    "no nonce": changed("signature-input", f';nonce="{NONCE}"', ""),
    "a nonce that says something": changed("signature-input", NONCE, "user-00"),
    "a longer nonce": changed("signature-input", NONCE, f"{NONCE}00"),
    "a nonce in capitals": changed("signature-input", NONCE, NONCE.upper()),
    "no time": changed("signature-input", f";created={SECONDS}", ""),
    "a time in words": changed("signature-input", str(SECONDS), '"now"'),
    "a time with a zero before": changed("signature-input", str(SECONDS), f"0{SECONDS}"),
    "a time before any": changed("signature-input", str(SECONDS), f"-{SECONDS}"),
    "an end": changed("signature-input", ";alg", f";expires={SECONDS + 60};alg"),
    "a tag": changed("signature-input", ";alg", ';tag="user-00";alg'),
    "another order of parameters": changed(
        "signature-input", f'created={SECONDS};keyid="east"', f'keyid="east";created={SECONDS}'
    ),
    "a name that is none": changed("signature-input", '"east"', '"../user-00"'),
    "another label": {name: value.replace("sig1", "user-00") for name, value in SIGNED.items()},
    "two signatures": SIGNED
    | {name: f"{SIGNED[name]}, {SIGNED[name].replace('sig1', 'sig2')}" for name in ("signature", "signature-input")},
    "a space more": changed("signature-input", "=(", "= ("),
    "no signature in it": SIGNED | {"signature": ""},
    "a shorter signature": changed("signature", "==:", ":"),
    "another spelling of a signature": SIGNED
    | {"signature": SIGNED["signature"][:-4] + chr(ord(SIGNED["signature"][-4]) + 1) + "==:"},
    "another digest": SIGNED | {"content-digest": NO_BODY.replace("sha-256", "sha-512")},
    "two digests": SIGNED | {"content-digest": f"{NO_BODY}, {NO_BODY}"},
    "no digest in it": SIGNED | {"content-digest": "user-00"},
}


@pytest.mark.parametrize("form", OTHER_FORMS)
def test_another_form_is_refused_and_nothing_of_it_repeated(form: str) -> None:
    assert OTHER_FORMS[form] != SIGNED
    with pytest.raises(AuthenticationError, match="expected") as raised:
        read_claim(OTHER_FORMS[form].items())
    assert "user-00" not in str(raised.value) and type(raised.value) is AuthenticationError


@pytest.mark.parametrize("name", list(SIGNED))
def test_each_header_is_needed_once(name: str) -> None:
    without = [(one, value) for one, value in SIGNED.items() if one != name]
    for headers in (without, [*SIGNED.items(), (name.title(), SIGNED[name])]):
        with pytest.raises(AuthenticationError, match="content-digest, signature-input, signature, each once"):
            read_claim(headers)


PARTS = {"method": POLL.method, "path": POLL.path, "query": POLL.query, **SIGNED}
CHARACTERS = st.characters(min_codepoint=0x20, max_codepoint=0x7E)


@given(data=st.data(), part=st.sampled_from(list(PARTS)), kind=st.sampled_from(["change", "insert", "remove"]))
def test_one_byte_that_is_another_anywhere_is_refused(data: st.DataObject, part: str, kind: str) -> None:
    text = PARTS[part]
    place = data.draw(st.integers(0, len(text) - 1))
    put = "" if kind == "remove" else data.draw(CHARACTERS)
    other = text[:place] + put + text[place + (kind != "insert") :]
    if other == text:
        return
    said = PARTS | {part: other}
    target = RequestTarget(said["method"], said["path"], said["query"])
    try:
        claim = read_claim((name, said[name]) for name in SIGNED)
    except AuthenticationError:
        return
    assert not is_valid_claim(claim, target, KEY.public_key())


@given(place=st.integers(0, 63), bit=st.integers(0, 7))
def test_one_bit_of_the_signature_that_is_another_is_refused(place: int, bit: int) -> None:
    raw = bytearray(base64.b64decode(SIGNED["signature"][6:-1]))
    raw[place] ^= 1 << bit
    forged = SIGNED | {"signature": f"sig1=:{base64.b64encode(raw).decode()}:"}
    assert not is_valid_claim(read_claim(forged.items()), POLL, KEY.public_key())


HUGE = 100_000
HOSTILE: dict[str, list[tuple[str, str]]] = {
    "a folded line": [*changed("signature-input", ";alg", "\r\n ;alg").items()],
    "bytes beyond ASCII": [*changed("signature-input", '"east"', '"e\xe4st"').items()],
    "digits that are none of ours": [*changed("signature-input", str(SECONDS), "\u0661" * 10).items()],
    "a line after it": [*changed("signature", "==:", "==:\n").items()],
    "the same header in capitals": [*SIGNED.items(), ("SIGNATURE-INPUT", INPUT)],
    "a label that is taken twice": [*changed("signature-input", "sig1=", "sig1=(), sig1=").items()],
    "a huge list": [*changed("signature-input", '"@path"', '"@path" ' * (HUGE // 8)).items()],
    "a huge name": [*changed("signature-input", "east", "e" * HUGE).items()],
    "a huge time": [*changed("signature-input", str(SECONDS), "9" * HUGE).items()],
    "a huge signature": [*changed("signature", "==:", "A" * HUGE + "==:").items()],
    "many headers": [*SIGNED.items(), *[("signature", "")] * HUGE],
}


@pytest.mark.parametrize("form", HOSTILE)
def test_what_a_stranger_sends_is_refused_in_the_time_of_its_length(form: str) -> None:
    began = time.process_time()
    with pytest.raises(AuthenticationError):
        read_claim(HOSTILE[form])
    assert time.process_time() - began < 0.5


@pytest.mark.parametrize(
    "part", ["/" + "%41" * HUGE + "%", "/" + "a" * HUGE + "\n", "/" + "a%" * HUGE, "/" + "?" * HUGE + "#"]
)
def test_a_huge_target_is_judged_in_the_time_of_its_length(part: str) -> None:
    claim, began = read_claim(SIGNED.items()), time.process_time()
    for target in (replace(POLL, path=part), replace(POLL, query=part), replace(POLL, method=part)):
        assert not is_valid_claim(claim, target, KEY.public_key())
        with pytest.raises(ProtocolError):
            sign_request(target, b"", EAST, created=SECONDS, nonce=NONCE)
    assert time.process_time() - began < 1.0
