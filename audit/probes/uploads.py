"""Probes of the aggregator: undeclared bodies sent past the gate must be refused.

They go to a round that holds this client's update already: none could be taken for it.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import httpx

from audit.evidence.evidence import PartEvidence, ProbeResult, ProbeSending, make_result
from audit.probes import bodies
from audit.probes.bodies import probe_bodies, probed_declaration
from client_service.boundary.call_attempts import list_attempts
from shared.errors import (
    AuthenticationError,
    ConflictError,
    DigestError,
    ForbiddenError,
    HeadError,
    MediaTypeError,
    ProtocolError,
    ReplayError,
)
from shared.method.declaration import Declaration
from shared.protocol.request_heads import replace_library_headers
from shared.protocol.signing.keys import PrivateKey, new_key
from shared.protocol.signing.requests import NONCE_BYTES, RequestTarget, Signatory, sign_request
from shared.protocol.wire import MEDIA_TYPE
from shared.sums.sum import BASIS

KIND = "past the gate"
JSON = "application/json"
CALL_SECONDS = 60.0
UNKNOWN_SENDER_CODES = (AuthenticationError.code, ReplayError.code)
MOST_DETAIL = 1 << 20  # bytes of an answer that are read


@dataclass(frozen=True)
class Intruder:
    """Client whose key signs the probes, with another client's name and the declaration."""

    signatory: Signatory
    another: str
    declaration: Declaration

    @property
    def client(self) -> str:
        """Name of the client whose key is used."""
        return self.signatory.name


@dataclass(frozen=True)
class RoundPlace:
    """Run and number of a round."""

    run: str
    round: int

    def update_path(self, client: str) -> str:
        """Returns the path of a client's update in this round."""
        return f"/v1/runs/{self.run}/rounds/{self.round}/clients/{client}/update"


@dataclass(frozen=True)
class UploadTry:
    """Call of a probe, with the refusal that it must get.

    key: another one than the client's. signed: another body than is sent. nonce: one that has come before. header:
    the value of a header that no client sends.
    """

    name: str
    method: str
    path: str
    status: int
    code: str
    body: bytes = b""
    media: str | None = None
    place: RoundPlace | None = None
    key: PrivateKey | None = None
    signed: bytes | None = None
    nonce: str | None = None
    header: str | None = None


def latest_place(evidence: PartEvidence) -> RoundPlace | None:
    """Finds the last round with a receipt of this client.

    Of training, where anything but sums leaves.
    """
    received = [
        attempt for attempt in list_attempts(evidence.entries) if attempt.receipt and attempt.run and attempt.round
    ]
    if evidence.declaration is not None:
        probed = probed_declaration(evidence.declaration)
        others = (one for one in evidence.declaration.sums.values() if one != probed)
        sums = [{spec.name for spec in one.uploaded} for one in others]
        received = [attempt for attempt in received if attempt.tensor_names not in sums]
    return RoundPlace(str(received[-1].run), int(received[-1].round or 0)) if received else None


def upload_tries(who: Intruder, place: RoundPlace) -> Iterator[UploadTry]:
    """Yields all tries, each refused for what its name says."""
    own, nonce = place.update_path(who.client), secrets.token_hex(NONCE_BYTES)
    probed = probed_declaration(who.declaration)
    whole, malformed = probe_bodies(probed, who.client, place.run, place.round)
    for name, body in malformed.items():
        yield UploadTry(name, "PUT", own, 422, ProtocolError.code, body, MEDIA_TYPE, place=place)
    for part, declared in who.declaration.sums.items():
        if declared == probed:
            continue
        sums = probe_bodies(declared, who.client, place.run, place.round)[0]
        what = "sums in a round of training" if part == BASIS else f"sums of {part} in a round of training"
        yield UploadTry(what, "PUT", own, 422, ProtocolError.code, sums, MEDIA_TYPE, place=place)
    # The control: what is well-formed is refused for another reason.
    put = UploadTry("control: as declared", "PUT", own, 409, ConflictError.code, whole, MEDIA_TYPE, place, nonce=nonce)
    yield put
    yield replace(put, name="the same once more", status=401, code=ReplayError.code)
    put = replace(put, status=401, nonce=None)
    yield replace(put, name="a wrong key", code=AuthenticationError.code, key=new_key())
    yield replace(put, name="another body than was signed", code=DigestError.code, signed=bodies.NOTHING)
    yield UploadTry("JSON", "PUT", own, 415, MediaTypeError.code, bodies.NOTHING, JSON, place=place)
    theirs = place.update_path(who.another)
    yield UploadTry("another client's name", "PUT", theirs, 403, ForbiddenError.code, whole, MEDIA_TYPE, place=place)
    foreign = bodies.join_body(who.declaration, who.another)
    more = bodies.join_body_with_more(who.declaration, who.client)
    yield UploadTry("join as another client", "POST", "/v1/clients", 403, ForbiddenError.code, foreign, JSON)
    yield UploadTry("join with a field more", "POST", "/v1/clients", 422, ProtocolError.code, more, JSON)
    yield UploadTry(
        "question with a parameter more", "GET", f"/v1/runs/current?{bodies.WORD}=1", 422, ProtocolError.code
    )
    yield UploadTry("a header more", "GET", "/v1/runs/current", 400, HeadError.code, header=bodies.WORD)
    yield UploadTry("the operator's question", "GET", "/v1/runs", 403, ForbiddenError.code)


async def probe_uploads(
    http: httpx.AsyncClient, who: Intruder, place: RoundPlace | None
) -> tuple[list[ProbeResult], list[ProbeSending]]:
    """Makes each try; returns results, and the bodies that may be on record now."""
    if place is None:
        expected, observed = "a round that holds this client's update", "none yet"
        return [make_result(KIND, "uploads", expected, observed, held=False)], []
    probes, sent = [], []
    for upload in upload_tries(who, place):
        status, code = await _send_try(http, upload, who.signatory)
        expected, observed = f"{upload.status} {upload.code}", f"{status or 'no answer'} {code}".strip()
        probes.append(make_result(KIND, upload.name, expected, observed))
        if _is_recorded(upload):
            sent.append(_sending_of(upload, status))
    return probes, sent


def planned_sendings(who: Intruder, place: RoundPlace | None) -> tuple[ProbeSending, ...]:
    """Lists the bodies about to be sent.

    Written down first, so that a probe that is cut short leaves nothing unexplained.
    """
    return (
        ()
        if place is None
        else tuple(_sending_of(upload, None) for upload in upload_tries(who, place) if _is_recorded(upload))
    )


def _is_recorded(upload: UploadTry) -> bool:
    """Tells whether the aggregator records a try.

    Not if its sender is unknown; a question without a body only if something in it is undeclared.
    """
    return upload.code not in UNKNOWN_SENDER_CODES and (
        bool(upload.body) or upload.code in (ProtocolError.code, HeadError.code)
    )


def _sending_of(upload: UploadTry, status: int | None) -> ProbeSending:
    digest = hashlib.sha256(upload.body).hexdigest()
    run, number = (None, None) if upload.place is None else (upload.place.run, upload.place.round)
    call = {"POST": "join", "PUT": "update"}.get(upload.method, "other")
    return ProbeSending.model_validate(
        {"call": call, "run": run, "round": number, "bytes": len(upload.body), "sha256": digest, "status": status}
    )


async def _send_try(http: httpx.AsyncClient, upload: UploadTry, who: Signatory) -> tuple[int | None, str]:
    """Sends a try; returns status and code of the answer."""
    media = {"Content-Type": upload.media} if upload.media else {}
    media |= {bodies.HEADER: upload.header} if upload.header else {}
    request = http.build_request(upload.method, upload.path, content=upload.body or None, headers=media)
    signed = _signature_headers(upload, request, who)
    request.headers = httpx.Headers([*replace_library_headers(request.headers.multi_items()), *signed.items()])
    try:
        answer = await http.send(request)
    except httpx.TransportError as error:
        return None, type(error).__name__
    return answer.status_code, _problem_code(answer.content[:MOST_DETAIL])


def _signature_headers(upload: UploadTry, request: httpx.Request, who: Signatory) -> dict[str, str]:
    target = RequestTarget.of(request.method, request.url.raw_path)
    body = upload.body if upload.signed is None else upload.signed
    nonce = upload.nonce or secrets.token_hex(NONCE_BYTES)
    return sign_request(target, body, Signatory(who.name, upload.key or who.key), created=int(time.time()), nonce=nonce)


def _problem_code(content: bytes) -> str:
    """Returns the code of a problem document; empty for another answer."""
    try:
        document = json.loads(content)
    except ValueError:
        return ""
    return str(document.get("code", "")) if isinstance(document, dict) else ""
