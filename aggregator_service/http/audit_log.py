"""Audit log of joins, uploads and undeclared requests, stored before they are answered.

Bodies are counted and hashed as they come and never stored. A request that a crash cuts off before its answer has no
row; its sender got no success either.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from aggregator_service.coordinator import Coordinator
from aggregator_service.http.direct_calls import RoundPath, RunPath
from aggregator_service.http.request_heads import RequestHeads
from aggregator_service.http.routes import OWN
from aggregator_service.http.signatures import RECEIVED
from aggregator_service.process import LOGGER
from aggregator_service.storage.arrivals import LEAST_REFUSED
from aggregator_service.storage.records import Arrival, Call
from shared.errors import HeadError, ProtocolError, UnavailableError
from shared.web import problems
from shared.web.routes import announces_body

T = TypeVar("T")

IN_A_ROUND: tuple[Call, ...] = ("update", "keys", "shares", "checks", "consents", "answers")
CALLS: dict[tuple[str, str], Call] = {
    ("POST", "/v1/clients"): "join",
    **{("PUT", f"{OWN}/{call}"): call for call in IN_A_ROUND},
}
WRONG_METHOD = 405
RUN: TypeAdapter[str] = TypeAdapter(RunPath)
ROUND: TypeAdapter[int] = TypeAdapter(RoundPath)


@dataclass(frozen=True)
class ArrivalRecorder:
    """Middleware that records requests of clients, with the answers that they got.

    It lies outside the check of signatures, so that it also records what that refuses, and inside the rate limit.
    """

    app: ASGIApp
    coordinator: Coordinator
    heads: RequestHeads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send, self.coordinator, self.heads)
        try:
            await self.app(scope, exchange.receive, exchange.send)
        except Exception:  # an internal error: the outer middleware answers it
            await exchange.record_failure()
            raise


class _Exchange:
    """One request with its answer."""

    def __init__(
        self, scope: Scope, receive: Receive, send: Send, coordinator: Coordinator, heads: RequestHeads
    ) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._coordinator, self._heads = coordinator, heads
        self._size, self._hash = 0, hashlib.sha256()
        self._answered, self._withdrawn = False, False
        scope.setdefault("state", {})[RECEIVED] = self._hash

    async def receive(self) -> Message:
        message = await self._receive()
        piece = message.get("body", b"")
        self._size += len(piece)
        self._hash.update(piece)
        return message

    async def send(self, message: Message) -> None:
        """Sends an answer once it is recorded; sends an error where recording fails."""
        if message["type"] == "http.response.start":
            self._answered = True
            try:
                await self._record(message["status"], self._scope.get("state", {}).get("code"))
            except UnavailableError as error:
                LOGGER.exception("arrival_not_recorded")
                self._withdrawn = True
                await problems.error_response(error)(self._scope, self._receive, self._send)
        if not self._withdrawn:
            await self._send(message)

    async def record_failure(self) -> None:
        if not self._answered:
            await self._record(500, problems.INTERNAL)

    async def _record(self, status: int, code: str | None) -> None:
        """Records a request under the client that signed it, if that client has joined.

        Requests of unknown callers have no row: they could be many and fill the disk. Requests with an unexpected
        head are recorded for every registered client, because such a client can never join.
        """
        call = CALLS.get((self._scope["method"], getattr(self._scope.get("route"), "path", "")), "other")
        if call != "other" and status >= LEAST_REFUSED:
            self._coordinator.metrics.refused.labels(call, code or str(status)).inc()
        if call == "other" and not self._is_undeclared(status, code):
            return
        client = self._scope.get("state", {}).get("client")
        if client is not None:
            await self._coordinator.federation.find_member(client)
        if client is None or (not self._coordinator.federation.members.has(client) and code != HeadError.code):
            self._coordinator.metrics.strangers.inc(call != "other")
            return
        await self._coordinator.federation.arrivals.add(self._arrival(client, call, status, code))

    def _is_undeclared(self, status: int, code: str | None) -> bool:
        """Tells whether no genuine client sends such a request, so that it could carry anything."""
        announced = announces_body(Headers(scope=self._scope))
        nowhere = self._scope.get("route") is None or status == WRONG_METHOD
        return nowhere or announced or self._size > 0 or code == ProtocolError.code

    def _arrival(self, client: str, call: Call, status: int, code: str | None) -> Arrival:
        place, claim = self._scope.get("path_params", {}), self._scope["state"].get("claim")
        return Arrival(
            client=client,
            call=call,
            run=_parse_name(RUN, place.get("run")),
            round=_parse_name(ROUND, place.get("number")),
            size=self._size,
            digest=self._hash.hexdigest(),
            status=status,
            code=code if status >= LEAST_REFUSED else None,
            nonce=None if claim is None else claim.nonce,
            head=self._heads.recorded_head(self._scope, claim).model_dump(),
        )


def _parse_name(kind: TypeAdapter[T], part: object) -> T | None:
    """Parses a name in a path; None if it is missing or invalid."""
    try:
        return kind.validate_python(part)
    except ValidationError:
        return None
