"""The calls of a secure round but its masked vector, which is the round's update. Nothing is decided here."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response
from pydantic import BaseModel

from aggregator_service.http.callers import Service, SignedRoute
from aggregator_service.http.routes import PRIVATE, PROBLEMS, SIGNED, Wait, address
from aggregator_service.rounds.uploads import Address
from shared.protocol.secure.messages import (
    Consent,
    Consents,
    Delivery,
    PublicKeys,
    Roster,
    SealedShares,
    ShareCheck,
    Sharers,
    UnmaskAnswer,
    UnmaskRequest,
)
from shared.timeouts import RETRY_AFTER_SECONDS

OWN = "/v1/runs/{run}/rounds/{number}/clients/{client}"
Place = Annotated[Address, Depends(address)]
TAKEN: dict[str, Any] = {"status_code": 204, "response_class": Response}
NOT_YET: dict[int | str, dict[str, Any]] = {204: {"description": "the wait is over, the phase before is not closed"}}

router = APIRouter(prefix=OWN, tags=["secure rounds"], dependencies=SIGNED, responses=PROBLEMS, route_class=SignedRoute)


@router.put("/keys", **TAKEN)
async def put_keys(place: Place, message: PublicKeys, service: Service) -> None:
    await service.relay_message(place, message)


@router.get("/roster", response_model=Roster, responses=NOT_YET)
async def read_roster(place: Place, service: Service, wait: Wait = 0.0) -> Response:
    return _message_response(await service.intake.roster(place, wait=service.bounded_wait(wait)))


@router.put("/shares", **TAKEN)
async def put_shares(place: Place, message: SealedShares, service: Service) -> None:
    await service.relay_message(place, message)


@router.get("/delivery", response_model=Delivery, responses=NOT_YET)
async def read_delivery(place: Place, service: Service, wait: Wait = 0.0) -> Response:
    return _message_response(await service.intake.delivery(place, wait=service.bounded_wait(wait)))


@router.get("/request", response_model=UnmaskRequest, responses=NOT_YET)
async def read_request(place: Place, service: Service, wait: Wait = 0.0) -> Response:
    return _message_response(await service.intake.request(place, wait=service.bounded_wait(wait)))


@router.put("/checks", **TAKEN)
async def put_checks(place: Place, message: ShareCheck, service: Service) -> None:
    await service.relay_message(place, message)


@router.get("/sharers", response_model=Sharers, responses=NOT_YET)
async def read_sharers(place: Place, service: Service, wait: Wait = 0.0) -> Response:
    return _message_response(await service.intake.sharers(place, wait=service.bounded_wait(wait)))


@router.put("/consents", **TAKEN)
async def put_consents(place: Place, message: Consent, service: Service) -> None:
    await service.relay_message(place, message)


@router.get("/signatures", response_model=Consents, responses=NOT_YET)
async def read_signatures(place: Place, service: Service, wait: Wait = 0.0) -> Response:
    return _message_response(await service.intake.consents(place, wait=service.bounded_wait(wait)))


@router.put("/answers", **TAKEN)
async def put_answers(place: Place, message: UnmaskAnswer, service: Service) -> None:
    await service.relay_message(place, message)


def _message_response(message: BaseModel | None) -> Response:
    if message is None:
        return Response(status_code=204, headers=PRIVATE | {"Retry-After": str(RETRY_AFTER_SECONDS)})
    return Response(message.model_dump_json(), media_type="application/json", headers=PRIVATE)
