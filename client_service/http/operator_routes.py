"""Answers an operator over HTTP: status, quality, spectrum, declaration and ledger. Decides nothing."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from pydantic import Field

from client_service.boundary.gate_self_test import GateOut
from client_service.federation.messages import QualityOut, SpectrumOut, StatusOut
from client_service.http.authentication import COMMON, OTHER_TASK, OperatorRoute
from client_service.http.service import ClientService
from client_service.refresh.rollback import ModelsOut, list_models, serve_version
from client_service.refresh.scheduler import RefreshOut
from client_service.secure_rounds.members import AcceptedMembersIn, MembersOut
from shared.errors import DataError
from shared.message import Message
from shared.method.declaration import Declaration

LEDGER_PAGE = 1000


class LedgerOut(Message):
    """A page of the record of all that has left this client."""

    entries: tuple[dict[str, Any], ...] = Field(
        description="an intent and an outcome for each call", examples=[[{"sequence": 1, "kind": "request"}]]
    )
    total: int = Field(ge=0, description="entries of the whole ledger")
    verified: bool = Field(description="no entry was changed or removed")


silo = APIRouter(tags=["silo"], route_class=OperatorRoute, **COMMON)


async def client(request: Request) -> ClientService:
    found: ClientService = request.app.state.service
    return found


Service = Annotated[ClientService, Depends(client)]
VersionPath = Annotated[
    str, Path(min_length=1, max_length=200, description="the version of a kept model", examples=["run-1.5"])
]
After = Annotated[
    int, Query(ge=0, lt=1 << 53, description="the sequence number of the last one that is known", examples=[0])
]
Limit = Annotated[int, Query(ge=1, le=LEDGER_PAGE, description="how many entries at most", examples=[100])]


@silo.get("/status", response_model_exclude_none=True)
async def read_status(service: Service) -> StatusOut:
    """Returns what this client is doing, and what prevents it from continuing."""
    return service.status()


@silo.get("/quality")
async def read_quality(service: Service) -> QualityOut:
    """Returns the figures of a run.

    Each round is measured on validation items, the best round on test items.
    """
    return service.quality()


@silo.get("/spectrum")
async def read_spectrum(service: Service) -> SpectrumOut:
    """Returns both kernels that rho compares (Eq. 11): the shard's and the anchor's."""
    return service.spectrum()


@silo.get("/declaration")
async def read_declaration(service: Service) -> Declaration:
    """Returns the declaration of all that may leave this client."""
    return service.declaration()


@silo.get("/ledger")
def read_ledger(service: Service, after: After = 0, limit: Limit = 100) -> LedgerOut:
    """Returns the ledger of all that has left this client, entry by entry.

    `verified`: no entry was changed or removed.
    """
    try:
        total, verified = service.ledger.verify(), True
    except DataError:
        total, verified = sum(1 for _ in service.ledger.entries()), False
    return LedgerOut(entries=tuple(service.ledger.entries(after, limit)), total=total, verified=verified)


@silo.get("/refresh", response_model_exclude_none=True, responses=OTHER_TASK)
async def read_refresh(service: Service) -> RefreshOut:
    """Returns the state of the refresh of shard and model."""
    return service.refresher.status


@silo.post("/refresh", status_code=202, response_model_exclude_none=True)
async def start_refresh(service: Service) -> RefreshOut:
    """Starts a refresh: the shard absorbs the posted events, and the model is computed anew.

    During a run it waits for the end of the round.
    """
    return service.refresher.ask()


@silo.get("/members", response_model_exclude_none=True)
async def read_members(service: Service) -> MembersOut:
    """Returns the members whose keys this silo trusts, and those that wait for its consent.

    A silo without secure rounds pins no keys.
    """
    return service.members.status if service.settings.secure else MembersOut(file=False, members=())


@silo.post("/members/accept", response_model_exclude_none=True)
async def accept_members(message: AcceptedMembersIn, service: Service) -> MembersOut:
    """Accepts new members of the federation, each with its key as it was shown."""
    service.members.accept(message.keys)
    return service.members.status


@silo.get("/models")
def read_models(service: Service) -> ModelsOut:
    """Returns the kept models, the served one first."""
    return list_models(service.models, service.silo)


@silo.post("/models/{version}/serve")
def serve_model(version: VersionPath, service: Service) -> ModelsOut:
    """Serves an earlier model until a run finds one that validation prefers."""
    return serve_version(service.models, service.silo, version)


@silo.post("/gate/probe")
async def probe_gate(service: Service) -> GateOut:
    """Tests this client's gate with forbidden messages; nothing is sent."""
    return await service.check_gate()
