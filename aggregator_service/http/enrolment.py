"""Invitations: the operator makes one, and a silo without key or token redeems it."""

from __future__ import annotations

import hashlib
import time
from datetime import UTC, datetime
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from aggregator_service.coordinator import Coordinator
from aggregator_service.http.authentication import Service
from aggregator_service.http.direct_calls import ClientPath
from aggregator_service.http.routes import PRIVATE, PROBLEMS, Limit, Responses, operator_routes
from shared.errors import FederationError, ForbiddenError, SettingsError, UnavailableError
from shared.protocol.problem import ProblemOut
from shared.protocol.schemas import ClientName
from shared.protocol.signing.invitation import (
    LONGEST_ENROLMENT,
    DeclaredOut,
    EnrolledOut,
    EnrolmentIn,
    EnrolmentOut,
    EnrolmentsOut,
    InvitationIn,
    InvitationOut,
    RemovedOut,
    enrolment_digest,
)
from shared.protocol.signing.keys import fingerprint, raw_hex
from shared.protocol.signing.responses import sign_answer
from shared.web import problems
from shared.web.problems import describe_refusal
from shared.web.request_bodies import read_body
from shared.web.routes import DeclaredRoute


class InvitationRoute(DeclaredRoute):
    """Route for invited silos, which reads no more than a code and a key."""

    async def authorise(self, request: Request) -> None:
        if hasattr(request.state, "client"):
            raise ForbiddenError("expected a silo without a key, got one whose key is registered")

    async def read_body(self, request: Request) -> None:
        await read_body(request, LONGEST_ENROLMENT)


REFUSED: Responses = {
    status: {"model": ProblemOut, "description": describe_refusal(status, when)}
    for status, when in ((401, "for any other code"), (403, "for a silo whose key is registered"))
}
AfterName = Annotated[ClientName | None, Query(description="name of the last known silo", examples=["client-1"])]
router = APIRouter(prefix="/v1", tags=["enrolment"], responses=PROBLEMS | REFUSED, route_class=InvitationRoute)
UNWRITABLE = "the folder of registered keys cannot be written: register the silo's key with `lpsfed keys register`"


@operator_routes.get("/federation")
async def read_federation(service: Service) -> DeclaredOut:
    """Returns the settings that runs begin with, and the aggregator's public key."""
    key = raw_hex(service.federation.key.public_key())
    return DeclaredOut(aggregator=key, **dict(service.settings.describe_federation()))


@operator_routes.post("/invitations", status_code=201)
async def invite(message: InvitationIn, service: Service, response: Response) -> InvitationOut:
    """Invites a silo under a name that has no key yet.

    An earlier invitation of this name ends.
    """
    response.headers.update(PRIVATE)
    settings, registrar = service.settings, service.federation.registrar
    try:
        opened = registrar.registry.open_invitation
        code, expires = await registrar.run(opened, message.name, message.days, _now(service))
    except SettingsError:
        raise UnavailableError(UNWRITABLE) from None
    return InvitationOut(
        code=code,
        expires=expires,
        aggregator=raw_hex(service.federation.key.public_key()),
        federation=settings.describe_federation(),
        members=await _named_members(service),
        items=settings.items,
    )


@router.post("/enrolments", status_code=201, response_model=EnrolmentOut)
async def enrol(message: EnrolmentIn, service: Service, request: Request) -> Response:
    """Registers a silo's key by the code of its invitation, which counts once.

    The same key again changes nothing. The answer, also a refusal, is signed by the aggregator's key over its status,
    its content and this message.
    """
    try:
        content = (await _enrol_silo(message, service)).model_dump_json()
        answer = Response(content, 201, media_type="application/json")
    except FederationError as error:
        request.state.code = error.code
        answer = problems.error_response(error)
    sha256 = hashlib.sha256(bytes(answer.body)).digest()
    created = int(time.time())
    signed = sign_answer(answer.status_code, sha256, enrolment_digest(message), service.federation.key, created=created)
    answer.headers.update(signed)
    return answer


@operator_routes.get("/enrolments")
async def list_silos(service: Service, after: AfterName = None, limit: Limit = 100) -> EnrolmentsOut:
    """Returns the silos whose keys are registered, by name.

    A key is registered in the folder of keys or in the database.
    """
    found, total = await service.federation.registrar.list_keys(after or "", limit)
    marks = {name: None if key is None else fingerprint(key) for name, key in found.items()}
    entries = tuple(EnrolledOut(name=name, fingerprint=mark) for name, mark in marks.items())
    return EnrolmentsOut(entries=entries, total=total)


@operator_routes.delete("/enrolments/{client}")
async def remove_silo(client: ClientPath, service: Service) -> RemovedOut:
    """Removes a silo's key and its open invitation: its next call is refused."""
    registrar = service.federation.registrar
    try:
        await registrar.run(registrar.registry.remove_silo, client)
    except SettingsError:
        raise UnavailableError(UNWRITABLE) from None
    return RemovedOut(name=client)


async def _enrol_silo(message: EnrolmentIn, service: Coordinator) -> EnrolmentOut:
    registrar, own = service.federation.registrar, raw_hex(service.federation.key.public_key())
    try:
        await registrar.run(registrar.registry.redeem_invitation, message, _now(service), own)
    except SettingsError:
        raise UnavailableError(UNWRITABLE) from None
    members = await _named_members(service)
    return EnrolmentOut(name=message.name, members=members, **dict(service.settings.describe_federation()))


async def _named_members(service: Coordinator) -> tuple[str, ...]:
    """Lists the members' names in a secure federation; an open one keeps them private."""
    if not service.settings.secure:
        return ()
    registrar = service.federation.registrar
    return await registrar.run(registrar.registry.known_names, _now(service))


def _now(service: Coordinator) -> datetime:
    """Returns the time by the clock that all workers share, if there are several."""
    workers = service.federation.archive.database.workers
    return datetime.fromtimestamp(time.time() if workers is None else workers.now(), UTC)
