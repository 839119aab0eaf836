"""Gate of a silo: an HTTP transport for declared calls, each written to the ledger.

Nothing leaves a client by another way.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import httpx
from pydantic import ValidationError

from client_service.boundary.call_records import CallRecorder, PendingCall, fingerprint_answer, read_outcome
from client_service.boundary.event_stream import EventStream
from client_service.boundary.ledger import Ledger
from client_service.boundary.secure_bodies import ANSWERED, FETCHED, MESSAGES, decode_masked_update, message_entry
from client_service.runtime.logs import LOGGER
from shared.errors import FederationError, PrivacyError, ProtocolError, TooLargeError
from shared.method.declaration import Declaration
from shared.method.parameters import Array, memory_form
from shared.protocol.lengths import longest_relayed, longest_update
from shared.protocol.masked_wire import declare_answer
from shared.protocol.request_heads import HOST, LENGTH, NUMBER, TYPE, UNSIGNED, WORDS, RequestHead
from shared.protocol.schemas import JoinIn
from shared.protocol.secure.fixed_point import MOST_CLIENTS
from shared.protocol.secure.vectors import SCALARS
from shared.protocol.signing.events import CHANGES
from shared.protocol.signing.keys import PrivateKey, PublicKey
from shared.protocol.signing.requests import (
    SIGNATURE,
    RequestTarget,
    Signatory,
    is_deterministic_signature,
    sign_request,
)
from shared.protocol.signing.responses import read_signer, require_answer
from shared.protocol.wire import MEDIA_TYPE, decode_body, encode_body, require_content
from shared.sums import NOISED
from shared.timeouts import CALL_SECONDS


def describe_tensors(declaration: Declaration, tensors: Mapping[str, Array]) -> list[dict[str, Any]]:
    """Describes tensors for the ledger: name, type, shape, size and hash.

    up_only: the aggregator sends the tensor to no client. declaration: of all that may leave; masked scalars are a
    tensor that it does not name.
    """
    part = declaration.with_tensors(frozenset(tensors) - {SCALARS})
    reports = {spec.name for spec in part.reports}
    return [
        _describe_tensor(name, value) | ({"up_only": True} if name in reports else {})
        for name, value in tensors.items()
    ]


def _describe_tensor(name: str, value: Array) -> dict[str, Any]:
    form, content = memory_form(value), value.tobytes()
    return {
        "name": name,
        "dtype": form.dtype,
        "shape": list(form.shape),
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }


SHORT_ANSWER = 64 << 10  # a receipt, the state of the run, a problem document
ANCHOR_ANSWER = 256 << 10  # 4,096 numbers
PARAMETER_CALLS = ("model", "personalized")


@dataclass(frozen=True)
class Call:
    """Kind of declared call: name, method, path, and the queries that it allows."""

    name: str
    method: str
    path: re.Pattern[str]
    query: re.Pattern[str] = re.compile("")


def declared_calls(client: str, *, secure: bool = False) -> tuple[Call, ...]:
    """Lists the calls that a client may make.

    secure: with those of the masks.
    """
    run, number = r"/v1/runs/(?P<run>run-[0-9]{1,9})", r"/rounds/(?P<round>[0-9]{1,9})"
    own = f"{run}{number}/clients/{re.escape(client)}"
    always = (
        Call("join", "POST", re.compile(r"/v1/clients")),
        Call("current", "GET", re.compile(r"/v1/runs/current"), re.compile(f"wait={NUMBER}(?:&after={NUMBER})?")),
        Call("changes", "GET", re.compile(re.escape(CHANGES)), re.compile(f"after={NUMBER}")),
        Call("model", "GET", re.compile(f"{run}/model")),
        Call("anchor", "GET", re.compile(f"{run}{number}/anchor")),
        Call("update", "PUT", re.compile(f"{own}/update")),
        Call("personalized", "GET", re.compile(f"{own}/personalized"), re.compile(f"wait={NUMBER}")),
    )
    if not secure:
        return always
    waiting, never = re.compile(f"wait={NUMBER}"), re.compile("")
    sent = (Call(name, "PUT", re.compile(f"{own}/{name}"), waiting if name in ANSWERED else never) for name in MESSAGES)
    fetched = (Call(name, "GET", re.compile(f"{own}/{name}"), waiting) for name in FETCHED)
    return (*always, *sent, *fetched)


def longest_answer(call: str, declaration: Declaration) -> int:
    """Returns the largest size of a call's answer in bytes, whatever its status.

    The client stops reading a longer answer.
    """
    if call in PARAMETER_CALLS:
        return max(longest_update(declare_answer(part)) for part in declaration.parts)
    if call in FETCHED or call in ANSWERED:
        return max(longest_relayed(part, MOST_CLIENTS) for part in declaration.parts)
    return ANCHOR_ANSWER if call == "anchor" else SHORT_ANSWER


LARGE_BODY = 1 << 20  # bytes; a larger body is checked in a thread, because the event loop answers requests meanwhile


@dataclass(frozen=True)
class Boundary:
    """Sender, destination, and what may be sent.

    permit: with differential privacy, an update's sha256 (None: masked) -> what the ledger says of its release; it
    raises PrivacyError for an update that is no release. permit_basis: the same of a noised part of the common basis,
    which is always masked.
    """

    client: str
    aggregator: httpx.URL
    declaration: Declaration
    counts: bool
    max_upload_bytes: int
    permit: Callable[[str | None], Mapping[str, Any]] | None = None
    permit_basis: Callable[[], Mapping[str, Any]] | None = None


@dataclass
class Traffic:
    """Bytes of all bodies so far."""

    up: int = 0
    down: int = 0


class GateTransport(httpx.AsyncBaseTransport):
    """Transport that checks, records, signs and sends each request, and records its outcome.

    Callers have no part in a signature: its time and nonce are made here, when the rest is fixed.
    """

    def __init__(
        self,
        inner: httpx.AsyncBaseTransport,
        boundary: Boundary,
        ledger: Ledger,
        key: PrivateKey,
        *,
        call_seconds: float = CALL_SECONDS,
        trusted_key: Callable[[str], PublicKey] | None = None,
    ) -> None:
        """Wraps a transport.

        trusted_key: returns the key that an answer must be signed with, for the key that it names; None: any answer
        is trusted.
        """
        self._inner, self._boundary, self._call_seconds = inner, boundary, call_seconds
        self._recorder = CallRecorder(ledger)
        self._signatory, self._trusted_key = Signatory(boundary.client, key), trusted_key
        self._host = boundary.aggregator.netloc.decode("ascii")
        self._headers = {name: form for name, form in WORDS.items() if name not in UNSIGNED}
        self._headers[HOST] = re.compile(re.escape(self._host))
        self.traffic = Traffic()
        self._calls = declared_calls(boundary.client, secure=boundary.declaration.secure)

    @property
    def boundary(self) -> Boundary:
        return self._boundary

    def copy_for_test(self, inner: httpx.AsyncBaseTransport, ledger: Ledger) -> GateTransport:
        """Returns the same gate with another transport and ledger, and without checks of releases."""
        return type(self)(inner, replace(self._boundary, permit=None, permit_basis=None), ledger, self._signatory.key)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        call, signed, pending = await self._begin_call(request)
        try:
            response = await self._read_answer_in_time(signed, longest_answer(call.name, self._boundary.declaration))
        except (httpx.HTTPError, FederationError) as error:
            name = type(error).__name__
            self._recorder.end(pending, {"error": name}, fingerprint=name)
            raise
        except BaseException:
            self._recorder.write_intent(pending)
            raise
        self._end_call(call, pending, response)
        return response

    async def open_stream(self, request: httpx.Request) -> EventStream | httpx.Response:
        """Sends a request whose answer the aggregator holds open; returns a refusal whole.

        The outcome is recorded when the stream ends.
        """
        call, signed, pending = await self._begin_call(request)
        stream = None
        try:
            async with asyncio.timeout(self._call_seconds):
                response = await self._inner.handle_async_request(signed)
                if response.status_code != httpx.codes.OK:
                    answer = await self._read_whole(signed, response, SHORT_ANSWER)
                    self._end_call(call, pending, answer)
                    return answer
                stream = self._event_stream(signed, response, pending)
                try:
                    await stream.open()
                except BaseException:
                    await stream.aclose()  # records what has come
                    raise
                return stream
        except TimeoutError:
            error: Exception = httpx.ReadTimeout("the answer did not begin in time", request=request)
        except (httpx.HTTPError, FederationError) as failed:
            error = failed
        if stream is None:
            self._recorder.end(pending, {"error": type(error).__name__}, fingerprint=type(error).__name__)
        raise error

    def _event_stream(self, signed: httpx.Request, response: httpx.Response, pending: PendingCall) -> EventStream:
        known = signed.url.params.get("after")

        def end(size: int, digest: str) -> None:
            self.traffic.down += size
            outcome = {"status": response.status_code, "bytes": size, "sha256": digest}
            self._recorder.end(pending, outcome, fingerprint=str(response.status_code))

        after = None if known is None else int(known)
        return EventStream(response, signed.headers[SIGNATURE], self._trusted_key, end, after=after)

    def _end_call(self, call: Call, pending: PendingCall, response: httpx.Response) -> None:
        """Records the outcome of a call whose whole answer has come."""
        self.traffic.down += len(response.content)
        self._recorder.end(
            pending, read_outcome(call.name, response), fingerprint=fingerprint_answer(call.name, response)
        )

    async def _begin_call(self, request: httpx.Request) -> tuple[Call, httpx.Request, PendingCall]:
        """Checks a request, records it, and signs it."""
        call, place = self._declared_call(request)
        body = await request.aread()
        if len(body) > LARGE_BODY:
            fields = await asyncio.to_thread(self._describe_body, call, place, request, body)
        else:
            fields = self._describe_body(call, place, request, body)
        head = self._build_head(request)
        what = {"bytes": len(body), "sha256": hashlib.sha256(body).hexdigest(), **self._head_entry(head), **fields}
        pending = self._recorder.begin({"call": call.name, "to": str(self._boundary.aggregator), **place, **what})
        signed = self._sign(request, head, body, pending)
        self.traffic.up += len(body)
        return call, signed, pending

    async def aclose(self) -> None:
        """Writes the counted calls, and closes the transport.

        Where the disk refuses, the client ends all the same.
        """
        try:
            self._recorder.flush()
        except OSError as error:
            LOGGER.error("polls_not_written", reason=error.strerror)
        await self._inner.aclose()

    def _declared_call(self, request: httpx.Request) -> tuple[Call, dict[str, str]]:
        """Finds the declared call of a request, and the run and round in its path.

        Raises PrivacyError for any other request.
        """
        self._check_destination(request)
        self._check_headers(request.headers)
        path, mark, query = request.url.raw_path.decode("ascii").partition("?")
        for call in self._calls:
            match = call.path.fullmatch(path)
            if match and request.method == call.method:
                if mark and not call.query.fullmatch(query):
                    raise PrivacyError(f"expected numbers alone in the query of {call.name!r}, got others")
                return call, match.groupdict()
        raise PrivacyError(f"expected one of the calls {[call.name for call in self._calls]}, got another")

    def _check_destination(self, request: httpx.Request) -> None:
        url, home = request.url, self._boundary.aggregator
        if (url.scheme, url.host, url.port) != (home.scheme, home.host, home.port) or url.userinfo or url.fragment:
            raise PrivacyError("expected the aggregator as destination, got another")
        if set(request.extensions) - {"timeout"}:  # one of them replaces the path on the wire
            raise PrivacyError("expected a plain request, got transport extensions")

    def _check_headers(self, headers: httpx.Headers) -> None:
        if extra := len(set(headers) - set(self._headers)):
            raise PrivacyError(f"expected the headers {sorted(self._headers)}, got {extra} more")
        if wrong := sorted(name for name, value in headers.items() if not self._headers[name].fullmatch(value)):
            raise PrivacyError(f"expected this client's own values of the headers {wrong}, got others")

    def _describe_body(
        self, call: Call, place: Mapping[str, str], request: httpx.Request, body: bytes
    ) -> dict[str, Any]:
        """Checks a body, and describes its fields for the ledger.

        It reads the bytes that are about to leave.
        """
        if call.name == "join":
            return {"join": self._join_entry(body)}
        if call.name == "update":
            self._require_size(request.headers, body)
            return (
                self._masked_entry(place, body) if self._boundary.declaration.secure else self._open_update_entry(body)
            )
        if call.name in MESSAGES:
            return message_entry(call.name, self._boundary.client, place, body)
        if body:
            raise PrivacyError(f"expected no body for {call.name!r}, got {len(body)} bytes")
        return {}

    def _join_entry(self, body: bytes) -> dict[str, Any]:
        try:
            message = JoinIn.model_validate_json(body)
        except ValidationError:
            raise PrivacyError("expected a join message, got another body") from None
        if body != message.model_dump_json().encode():  # repeated fields and spaces could carry anything
            raise PrivacyError("expected the join message as this client writes it, got another form of it")
        if (message.client, message.declaration) != (self._boundary.client, self._boundary.declaration):
            raise PrivacyError("expected this client's own name and declaration in the join message, got others")
        if message.counts is not None and not self._boundary.counts:
            raise PrivacyError("expected no counts in the join message: the silo's policy does not share them")
        counts = None if message.counts is None else message.counts.model_dump()
        return {"client": message.client, "strategy": message.declaration.strategy, "counts": counts}

    def _require_size(self, headers: Mapping[str, str], body: bytes) -> None:
        if len(body) > self._boundary.max_upload_bytes or headers.get("content-type") != MEDIA_TYPE:
            words = (
                f"expected at most {self._boundary.max_upload_bytes} bytes of {MEDIA_TYPE} (policy.max_upload_bytes)"
            )
            raise PrivacyError(f"{words}, got {len(body)} bytes, or of another type")

    def _masked_entry(self, place: Mapping[str, str], body: bytes) -> dict[str, Any]:
        found = decode_masked_update(self._boundary.declaration, self._boundary.client, place, body)
        tensors = describe_tensors(self._boundary.declaration, dict(sorted(found.vector.items())))
        written = {"tensors": tensors, "scalars": dict(found.header.scalars)}
        return self._release_entry(None) | self._noise_entry(found.vector) | written

    def _open_update_entry(self, body: bytes) -> dict[str, Any]:
        try:
            specification, content = decode_body(body)
            require_content(self._boundary.declaration.with_tensors(content.arrays), specification, content)
        except ProtocolError:  # its words may quote names and values that nobody declared
            raise PrivacyError("expected an update of the declared tensors and scalars, got another body") from None
        if body != encode_body(content):  # repeated names, spaces and digits could carry anything
            raise PrivacyError("expected the update as this client writes it, got another form of it")
        if not NOISED.isdisjoint(content.arrays):
            raise PrivacyError("expected a part of a noised sum to leave under masks, got it in the open")
        arrays = {spec.name: content.arrays[spec.name] for spec in specification}
        tensors = describe_tensors(self._boundary.declaration, arrays)
        written = {"tensors": tensors, "scalars": dict(content.scalars)}
        return self._release_entry(hashlib.sha256(body).hexdigest()) | written

    def _release_entry(self, digest: str | None) -> dict[str, Any]:
        permit = self._boundary.permit
        return {} if permit is None else {"privacy": permit(digest)}

    def _noise_entry(self, names: Collection[str]) -> dict[str, Any]:
        if NOISED.isdisjoint(names):
            return {}
        if self._boundary.permit_basis is None:
            raise PrivacyError("expected no part of a noised sum, because this silo has no account for it, got one")
        return {"noise": self._boundary.permit_basis()}

    def _build_head(self, request: httpx.Request) -> RequestHead:
        """Builds the head that leaves: the given fields in one fixed form."""
        media, length = request.headers.get(TYPE), request.headers.get(LENGTH)
        target = request.url.raw_path.decode("ascii")
        return RequestHead(request.method, target, self._host, media, None if length is None else int(length))

    def _head_entry(self, head: RequestHead) -> dict[str, Any]:
        """Describes a head for the ledger: its query, and its size with the signature."""
        query = head.target.partition("?")[2]
        return {"head": {"bytes": head.size(self._boundary.client)} | ({"query": query} if query else {})}

    def _sign(self, request: httpx.Request, head: RequestHead, body: bytes, pending: PendingCall) -> httpx.Request:
        target = RequestTarget.of(request.method, request.url.raw_path)
        made = sign_request(target, body, self._signatory, created=pending.created, nonce=pending.nonce)
        if not is_deterministic_signature(made, target, self._signatory.key):  # made by a library that was changed
            raise PrivacyError("expected the one signature that this client's key makes of the request, got another")
        headers = [*head.headers(), *made.items()]
        return httpx.Request(
            request.method, request.url, headers=headers, stream=request.stream, extensions=request.extensions
        )

    async def _read_answer_in_time(self, request: httpx.Request, longest: int) -> httpx.Response:
        """Reads an answer within the time limit of a call.

        Each step of a call has its limit; without one for all together an answer could trickle in without end.
        """
        try:
            async with asyncio.timeout(self._call_seconds):
                return await self._read_answer(request, longest)
        except TimeoutError:
            raise httpx.ReadTimeout("the answer was not whole in time", request=request) from None

    async def _read_answer(self, request: httpx.Request, longest: int) -> httpx.Response:
        return await self._read_whole(request, await self._inner.handle_async_request(request), longest)

    async def _read_whole(self, request: httpx.Request, response: httpx.Response, longest: int) -> httpx.Response:
        """Reads a whole answer, so that its size is recorded and bounded."""
        parts, size = [], 0
        try:
            if "content-encoding" in response.headers:  # a small body could unpack to a huge one
                raise ProtocolError("expected an answer without content encoding, as asked for, got an encoded one")
            async for part in response.aiter_raw():
                parts.append(part)
                size += len(part)
                if size > longest:
                    raise TooLargeError(f"expected an answer of at most {longest} bytes, got more")
        finally:
            await response.aclose()
        content = b"".join(parts)
        self._require_trusted_answer(request, response, content)
        return httpx.Response(response.status_code, headers=response.headers, content=content, request=request)

    def _require_trusted_answer(self, request: httpx.Request, response: httpx.Response, content: bytes) -> None:
        """Raises UnavailableError for an answer that the pinned aggregator key has not signed."""
        if self._trusted_key is None:
            return
        headers, sha256 = list(response.headers.items()), hashlib.sha256(content).digest()
        key = self._trusted_key(read_signer(headers))
        require_answer(response.status_code, headers, sha256, request.headers[SIGNATURE], key)
