"""HTTP -> who is in the federation, who is shut out of it, and the operator's decisions about that."""

from __future__ import annotations

from fastapi import APIRouter

from aggregator_service.http.callers import OperatedRoute, Service
from aggregator_service.http.routes import BY_TOKEN, PROBLEMS, ClientPath
from shared.protocol.schemas import MemberOut, QuarantineIn

router = APIRouter(
    prefix="/v1/clients", tags=["operator"], dependencies=BY_TOKEN, responses=PROBLEMS, route_class=OperatedRoute
)


@router.get("")
async def list_clients(service: Service) -> list[MemberOut]:
    return await service.quarantines.members()


@router.post("/{client}/quarantine", status_code=201)
async def quarantine(client: ClientPath, message: QuarantineIn, service: Service) -> MemberOut:
    return await service.quarantines.impose(client, message.reason)


@router.delete("/{client}/quarantine")
async def lift_quarantine(client: ClientPath, service: Service) -> MemberOut:
    return await service.quarantines.lift(client)
