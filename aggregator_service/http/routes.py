"""Routes of the aggregator's REST API; all decisions are the coordinator's."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse
from fastapi.security import APIKeyHeader, HTTPBearer

from aggregator_service.aggregation.bodies import Body
from aggregator_service.coordinator import Coordinator
from aggregator_service.http.authentication import Caller, Service, SignedRoute, Signer, TokenRoute, require_member
from aggregator_service.http.direct_calls import ClientPath, Known, RoundPath, RunPath, Wait
from aggregator_service.http.signatures import RECEIVED
from aggregator_service.rounds.uploads import Address
from aggregator_service.storage.records import instant
from shared.errors import (
    FederationError,
    ForbiddenError,
    MediaTypeError,
    NotFoundError,
    TooLargeError,
    UnavailableError,
)
from shared.message import Message
from shared.method.declaration import Declaration
from shared.protocol.problem import ProblemOut
from shared.protocol.schemas import (
    AnchorOut,
    ArrivalsOut,
    JoinIn,
    JoinOut,
    MemberOut,
    QuarantineIn,
    ReceiptOut,
    RunHistoryOut,
    RunIn,
    RunOut,
)
from shared.protocol.secure import messages
from shared.protocol.secure.server import Phase, RelayedMessage
from shared.protocol.signing.events import CHANGES, OFFER
from shared.protocol.signing.events import MEDIA_TYPE as EVENTS
from shared.protocol.signing.requests import DIGEST, SIGNATURE, body_digest
from shared.protocol.wire import MEDIA_TYPE
from shared.timeouts import RETRY_AFTER_SECONDS
from shared.web.health import LiveOut, ReadyOut
from shared.web.held_streams import HeldConnection, HeldResponse, find_hold, require_room
from shared.web.middleware import SMALL_MESSAGE
from shared.web.problems import MARK
from shared.web.routes import DeclaredRoute

PRIVATE = {"Cache-Control": "no-store"}
OWN = "/v1/runs/{run}/rounds/{number}/clients/{client}"

After = Annotated[int, Query(ge=0, lt=1 << 53, description="sequence number of the last known entry", examples=[0])]
Limit = Annotated[int, Query(ge=1, le=1000, description="largest number of entries", examples=[100])]


# Dependencies are async because the framework sends each plain function through a worker thread.
async def read_address(run: RunPath, number: RoundPath, client: ClientPath, caller: Caller) -> Address:
    """Returns the run, round and client of a path; a client may name only itself."""
    if client != caller:
        raise ForbiddenError(f"expected your own name, {caller!r}, got {client!r}")
    return Address(run, number, client)


async def require_acceptable(request: Request, service: Service, caller: Caller) -> None:
    """Refuses, by its headers, a known caller's body that cannot be an update."""
    del caller
    kind, encoding = request.headers.get("content-type", ""), request.headers.get("content-encoding")
    if kind != MEDIA_TYPE or encoding is not None:
        raise MediaTypeError(f"expected {MEDIA_TYPE} without content encoding, got {kind!r}, {encoding!r}")
    length, limit = request.headers.get("content-length", "0"), service.settings.longest_update
    if not length.isascii() or not length.isdigit() or int(length[:20]) > limit:
        raise TooLargeError(f"expected at most {limit} bytes, got {length[:20]!r}")


Place = Annotated[Address, Depends(read_address)]
Responses = dict[int | str, dict[str, Any]]
PROBLEMS: Responses = {MARK: {"model": ProblemOut, "description": "RFC 9457 problem document"}}
BINARY: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
PARAMETERS: Responses = {200: {"content": {MEDIA_TYPE: BINARY}, "description": "parameters"}}
NOT_YET: Responses = {204: {"description": "not aggregated within the wait; ask again"}}
REPEATED: Responses = {201: {"model": ReceiptOut, "description": "accepted; 200: it was accepted before"}}
EVENTS_FORM = "events, each a line of JSON and a line with its signature in base64"
STREAM: Responses = {200: {"content": {EVENTS: {"schema": {"type": "string"}}}, "description": EVENTS_FORM}}
UPDATE_BODY = {"requestBody": {"required": True, "content": {MEDIA_TYPE: BINARY}}}
# These are for /docs only; `SignedRoute` and `TokenRoute` authenticate the caller.
SIGNED = [Depends(APIKeyHeader(name="Signature", auto_error=False))]
BY_TOKEN = [Depends(HTTPBearer(auto_error=False))]
client_routes = APIRouter(
    prefix="/v1", tags=["clients"], dependencies=SIGNED, responses=PROBLEMS, route_class=SignedRoute
)
operator_routes = APIRouter(
    prefix="/v1", tags=["operator"], dependencies=BY_TOKEN, responses=PROBLEMS, route_class=TokenRoute
)
service_routes = APIRouter(tags=["service"], route_class=DeclaredRoute, responses=PROBLEMS)


@client_routes.post("/clients")
async def join(message: JoinIn, signer: Signer, service: Service) -> JoinOut:
    """Joins a client with its declaration, which it may repeat."""
    return await service.join_client(message, signer)


@client_routes.get("/runs/current", response_model=RunOut)
async def read_current_run(
    request: Request,
    service: Service,
    caller: Caller,
    after: Known = None,
    wait: Wait = 0.0,
) -> Response:
    """Returns the state of the current run and of the calling client.

    With `after` and `wait` it is a long poll. The header Link names the stream of changes, where there is one.
    """
    headers = PRIVATE if find_hold(request.scope) is None else PRIVATE | OFFER
    return Response(await service.current_run(caller, after=after, wait=wait), 200, headers, "application/json")


@client_routes.get(CHANGES.removeprefix("/v1"), response_class=Response, responses=STREAM)
async def hold_changes(request: Request, service: Service, caller: Caller, after: Known = None) -> Response:
    """Returns the federation's changes as server-sent events, in an answer that stays open.

    The first event opens the stream; with `after` it is resumed: where the last change is another, it comes at once.
    Of changes that were missed only the last one comes. Heart-beats come in between. Each event is signed by the
    aggregator. 404 where the connection cannot be held, such as by HTTP/1.0: polls remain.
    """
    hold, signature = find_hold(request.scope), request.headers[SIGNATURE]
    if hold is None:
        raise NotFoundError("expected a connection of HTTP/1.1 that can be held, got another: poll instead")
    require_room(request.scope)
    service.publish_state()

    def begin(connection: HeldConnection) -> None:
        service.federation.broadcaster.open_stream(caller, connection, request=signature, after=after)

    return HeldResponse(EVENTS, hold, begin)


@client_routes.get(
    "/runs/{run}/model", response_class=Response, dependencies=[Depends(require_member)], responses=PARAMETERS
)
async def read_model(run: RunPath, service: Service) -> Response:
    """Returns the initial parameters of a run."""
    return _parameters_response(await service.initial_body(run))


@client_routes.get("/runs/{run}/rounds/{number}/anchor", dependencies=[Depends(require_member)])
async def read_anchor(run: RunPath, number: RoundPath, response: Response, service: Service) -> AnchorOut:
    """Returns the anchor's kernel, with which each client compares its spectrum (Eq. 11)."""
    response.headers.update(PRIVATE)
    anchor = await service.round_anchor(run, number)
    return AnchorOut(run=run, round=number, kernel=anchor.kernel, source=anchor.source, size=anchor.size)


@client_routes.put(
    "/runs/{run}/rounds/{number}/clients/{client}/update",
    dependencies=[Depends(require_acceptable)],
    responses=REPEATED,
    openapi_extra=UPDATE_BODY,
)
async def put_update(place: Place, request: Request, response: Response, service: Service) -> ReceiptOut:
    """Stores a client's update of a round.

    The same update may be sent again; a different one is refused.
    """
    received = request.scope["state"][RECEIVED]
    receipt, new = await service.receive_update(place, request.stream(), received.hexdigest)
    response.status_code = 201 if new else 200
    return ReceiptOut(**vars(receipt) | {"received_at": instant(receipt.received_at)})


@client_routes.get(
    "/runs/{run}/rounds/{number}/clients/{client}/personalized", response_class=Response, responses=PARAMETERS | NOT_YET
)
async def read_personalised(place: Place, service: Service, wait: Wait = 0.0) -> Response:
    """Returns the mean of a round, mixed for the calling client (Eq. 14).

    With `wait` it is a long poll.
    """
    body = await service.personalised_body(place, wait=wait)
    return not_ready_response() if body is None else _parameters_response(body)


@operator_routes.post("/runs", status_code=201)
async def start_run(message: RunIn, service: Service) -> RunHistoryOut:
    """Starts a run, which waits until its clients have joined."""
    return await service.start_run(message)


@operator_routes.get("/runs")
async def list_runs(service: Service) -> list[RunHistoryOut]:
    """Returns all runs, oldest first."""
    return await service.run_histories()


@operator_routes.get("/runs/{run}")
async def read_run(run: RunPath, service: Service) -> RunHistoryOut:
    """Returns a run with its rounds.

    Each round lists who sent, who was missing, and how many bytes arrived.
    """
    return await service.run_history(run)


@operator_routes.delete("/runs/{run}")
async def cancel_run(run: RunPath, service: Service) -> RunHistoryOut:
    """Cancels a run; each silo stops at its next call."""
    return await service.cancel_run(run)


@operator_routes.get("/clients")
async def list_clients(service: Service) -> list[MemberOut]:
    """Returns the clients that have joined, with the cause of each quarantine."""
    return await service.federation.quarantines.members()


@operator_routes.post("/clients/{client}/quarantine", status_code=201)
async def impose_quarantine(client: ClientPath, message: QuarantineIn, service: Service) -> MemberOut:
    """Quarantines a client: its updates are refused until the quarantine is lifted."""
    return await service.federation.quarantines.impose_quarantine(client, message.reason)


@operator_routes.delete("/clients/{client}/quarantine")
async def lift_quarantine(client: ClientPath, service: Service) -> MemberOut:
    """Lifts the quarantine of a client."""
    return await service.federation.quarantines.lift_quarantine(client)


@operator_routes.get("/arrivals")
async def list_arrivals(service: Service, after: After = 0, limit: Limit = 100) -> ArrivalsOut:
    """Returns the audit log of arrivals, which a privacy report compares with the silos' ledgers."""
    return await service.federation.arrivals.page(after, limit)


@operator_routes.get("/declaration")
async def read_declaration(service: Service) -> Declaration:
    """Returns all that a client may send in this federation."""
    return service.declaration


@service_routes.get("/health/live")
async def read_liveness() -> LiveOut:
    """Tells that the process answers."""
    return LiveOut()


@service_routes.get("/health/ready", response_model_exclude_none=True)
async def read_readiness(service: Service) -> ReadyOut:
    """Tells that calls are taken; 503 gives the reason where they are not."""
    if (unready_reason := service.unready_reason) is not None:
        raise UnavailableError(unready_reason)
    return ReadyOut()


@service_routes.get("/metrics", response_class=Response, response_description="series in the text format of Prometheus")
async def read_metrics(service: Service) -> Response:
    """Returns counts and times in the text format of Prometheus."""
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _parameters_response(body: Body) -> Response:
    """Returns a response with parameters and their digest; streams a large body."""
    known = PRIVATE | {DIGEST: body_digest(bytes.fromhex(body.digest))}
    if (content := body.read_small()) is not None:
        return Response(content, media_type=MEDIA_TYPE, headers=known)
    known |= {"Content-Length": str(body.size)}
    return StreamingResponse(body.stream(), media_type=MEDIA_TYPE, headers=known)


def not_ready_response() -> Response:
    """Returns 204: the answer is not there yet, and the caller asks again."""
    return Response(status_code=204, headers=PRIVATE | {"Retry-After": str(RETRY_AFTER_SECONDS)})


# Calls of a secure round but its masked vector, which is the round's update: each phase has one by which a client sends
# its message, and one by which it gets what the phase has led to.
PHASE_OPEN: Responses = {204: {"description": "the phase before did not close within the wait; ask again"}}

secure_routes = APIRouter(
    prefix=OWN, tags=["secure rounds"], dependencies=SIGNED, responses=PROBLEMS, route_class=SignedRoute
)


def _add_put(call: Phase, kind: type[Message]) -> None:
    async def put(place: Place, message: RelayedMessage, service: Service) -> Response:
        await service.relay_message(place, message)
        return Response(status_code=204)

    put.__annotations__["message"] = kind
    said = f"Message of a client: {_summary_line(kind)}"
    secure_routes.put(f"/{call}", name=f"put_{call}", description=said, status_code=204, response_class=Response)(put)


def _add_exchange(call: Phase, kind: type[Message], answer: type[Message]) -> None:
    """Adds a call that takes a message and may wait for its phase.

    A large body does not wait: it would be in memory for as long. Nor does an error of the waiting answer a message
    that was taken: the call that asks for the result has it.
    """

    async def put(
        place: Place, message: RelayedMessage, service: Service, request: Request, wait: Wait = 0.0
    ) -> Response:
        await service.relay_message(place, message)
        if wait and len(await request.body()) <= SMALL_MESSAGE:
            with suppress(FederationError):
                return await _read_result(call, place, service, wait)
        return Response(status_code=204)

    put.__annotations__["message"] = kind
    said = f"Message of a client: {_summary_line(kind)} With `wait` the answer may bring the result of its phase."
    responses = PHASE_OPEN
    secure_routes.put(f"/{call}", name=f"put_{call}", description=said, response_model=answer, responses=responses)(put)


async def _read_result(phase: Phase, place: Address, service: Coordinator, wait: float) -> Response:
    message = await service.federation.intake.phase_result(phase, place, wait=wait)
    if message is None:
        return not_ready_response()
    text = message.text if isinstance(message, messages.Roster) else message.model_dump_json()
    return Response(text, media_type="application/json", headers=PRIVATE)


def _add_read(call: str, kind: type[Message], phase: Phase) -> None:
    async def read(place: Place, service: Service, wait: Wait = 0.0) -> Response:
        return await _read_result(phase, place, service, wait)

    said = f"Result of the phase before: {_summary_line(kind)} With `wait` it is a long poll."
    secure_routes.get(f"/{call}", name=f"read_{call}", description=said, response_model=kind, responses=PHASE_OPEN)(
        read
    )


def _summary_line(kind: type[Message]) -> str:
    return (kind.__doc__ or "").partition("\n\n")[0].replace("\n    ", " ")


_add_exchange("keys", messages.PublicKeys, messages.Roster)
_add_read("roster", messages.Roster, "keys")
_add_exchange("shares", messages.SealedShares, messages.Delivery)
_add_read("delivery", messages.Delivery, "shares")
_add_read("request", messages.UnmaskRequest, "masked")
_add_exchange("checks", messages.ShareCheck, messages.Sharers)
_add_read("sharers", messages.Sharers, "checks")
_add_exchange("consents", messages.Consent, messages.Consents)
_add_read("signatures", messages.Consents, "consents")
_add_put("answers", messages.UnmaskAnswer)
