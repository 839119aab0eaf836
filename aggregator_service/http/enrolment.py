"""HTTP -> invitations: the operator makes one, and a silo redeems it, which has neither a key nor the token yet."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool

from aggregator_service.http.callers import Service
from aggregator_service.http.routes import PRIVATE, PROBLEMS, Responses, operated
from shared.errors import ForbiddenError, SettingsError, UnavailableError
from shared.protocol.problem import ProblemOut
from shared.protocol.schemas import EnrolmentOut
from shared.protocol.signing.invitation import (
    LONGEST_ENROLMENT,
    EnrolmentIn,
    InvitationIn,
    InvitationOut,
    open_invitation,
    redeem,
)
from shared.protocol.signing.keys import raw_hex
from shared.web.refusals import describe_refusal
from shared.web.routes import DeclaredRoute
from shared.web.whole import read_whole


class InvitedRoute(DeclaredRoute):
    """Of whoever calls no more is read than a code and a key."""

    async def admit(self, request: Request) -> None:
        if hasattr(request.state, "client"):
            raise ForbiddenError("expected nobody who has a key already")

    async def read_body(self, request: Request) -> None:
        await read_whole(request, LONGEST_ENROLMENT)


REFUSED: Responses = {
    status: {"model": ProblemOut, "description": describe_refusal(status, when)}
    for status, when in ((401, "for any other code"), (403, "for who has a key already"))
}
router = APIRouter(prefix="/v1", tags=["enrolment"], responses=PROBLEMS | REFUSED, route_class=InvitedRoute)
UNWRITABLE = "the folder of registered keys cannot be written: the operator has to enrol with `lpsfed keys register`"


@operated.post("/invitations", status_code=201)
async def invite(message: InvitationIn, service: Service, response: Response) -> InvitationOut:
    """Invite a silo under a name that has no key yet. An earlier invitation of this name ends."""
    response.headers.update(PRIVATE)
    try:
        registry = service.settings.registry
        code, expires = await run_in_threadpool(open_invitation, message.name, registry, message.days)
    except SettingsError:
        raise UnavailableError(UNWRITABLE) from None
    return InvitationOut(code=code, expires=expires, aggregator=raw_hex(service.federation.key.public_key()))


@router.post("/enrolments", status_code=201)
async def enrol(message: EnrolmentIn, service: Service) -> EnrolmentOut:
    """Register a silo's key by the code of its invitation, which counts once. The same key again changes nothing."""
    settings = service.settings
    try:
        await run_in_threadpool(redeem, message, settings.registry, datetime.fromtimestamp(time.time(), UTC))
    except SettingsError:
        raise UnavailableError(UNWRITABLE) from None
    return EnrolmentOut(name=message.name, strategy=settings.strategy, secure=settings.secure, method=settings.method)
