"""Routes of the operator's page and its two forms.

Only the operator may see client names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import TypeAdapter, ValidationError

from aggregator_service.coordinator import Coordinator
from aggregator_service.http.authentication import Service, require_operator_form, require_operator_login
from aggregator_service.http.direct_calls import RunPath
from aggregator_service.pages.client_grid import LEGEND, ClientActivity, RunSnapshot, build_grid
from aggregator_service.pages.collaboration import draw_heat_map
from aggregator_service.pages.curves import constant_scalars, run_charts
from aggregator_service.pages.forms import FIELDS, errors_by_field, fill_start_form, form_guard, read_form, read_start
from aggregator_service.pages.overview import build_overview
from aggregator_service.pages.rows import (
    SHOWN_CLIENTS,
    arrivals_page,
    arrivals_window,
    client_rows,
    describe_purpose,
    round_rows,
)
from aggregator_service.process import run_in_worker
from shared.errors import ConflictError, FederationError, ForbiddenError, NotFoundError, ProtocolError, SettingsError
from shared.method.declaration import Declaration
from shared.method.settings import MethodSettings
from shared.protocol.schemas import ENDED, ArrivalsOut, MemberOut, RunHistoryOut
from shared.strategies import build_strategy
from shared.web.pages import PageHead, describe_declaration, load_templates, page_response, refusal_page, static_router
from shared.web.problems import find_status
from shared.web.routes import FORM, DeclaredRoute

SECTIONS = (("now", "Now"), ("rounds", "Rounds"), ("clients", "Clients"), ("runs", "Runs"), ("arrivals", "Audit log"))
SHOWN_RUNS = 20
TEMPLATE = load_templates(Path(__file__).parent / "templates").get_template("federation.html")


@dataclass(frozen=True)
class PageRequest:
    """Request for the page.

    refused: reason why its form was refused; typed: the values of that form.
    """

    url: str
    run: str | None = None
    before: int | None = None
    refused: str | None = None
    typed: Mapping[str, str] | None = None

    @property
    def address(self) -> str:
        query = {name: value for name, value in (("run", self.run), ("before", self.before)) if value is not None}
        return f"./?{urlencode(query)}" if query else "./"


@dataclass(frozen=True)
class PageContent:
    """Everything that the page shows.

    history: of the chosen run. guard: value that the page's forms carry. method: the federation's own settings.
    """

    page_request: PageRequest
    guard: str
    at: ClientActivity
    joined: tuple[str, ...]
    registered: frozenset[str]
    runs: list[RunHistoryOut]
    history: RunHistoryOut | None
    quarantined: list[MemberOut]
    arrivals: ArrivalsOut
    declaration: Declaration
    method: MethodSettings


async def collect_content(service: Coordinator, page_request: PageRequest) -> PageContent:
    """Reads everything that the page shows; raises NotFoundError for an unknown run."""
    await service.federation.take_members()
    runs, arrivals = await service.run_histories(), service.federation.arrivals
    name = page_request.run or (runs[-1].run if runs else None)
    after, limit = arrivals_window((await arrivals.page(0, 1)).total, page_request.before)
    return PageContent(
        page_request=page_request,
        guard=form_guard(service.operator_token),
        at=ClientActivity(service.now, service.last_calls.seen_times(), service.federation.broadcaster),
        joined=service.client_names,
        registered=await service.federation.registrar.registered_names(),
        runs=runs,
        history=None if name is None else await service.run_history(name),
        quarantined=[one for one in await service.federation.quarantines.members() if one.quarantine is not None],
        arrivals=await arrivals.page(after, limit),
        declaration=service.declaration,
        method=service.settings.method,
    )


def render_page(seen: PageContent) -> str:
    """Renders the page as HTML."""
    run, page_request = seen.history, seen.page_request
    snapshot = None if run is None else RunSnapshot(run, seen.at)
    active = next((one.run for one in seen.runs[-1:] if one.phase not in ENDED), None)
    trains = not build_strategy(seen.declaration.strategy, seen.method).sums_alone
    form = fill_start_form(seen.runs, len(seen.joined), seen.method, trains=trains)
    return TEMPLATE.render(
        head=PageHead(f"LPSFed, strategy {seen.declaration.strategy}", "Aggregator", page_request.address, SECTIONS),
        overview=build_overview(run, seen.joined, url=page_request.url, runs=seen.runs),
        refused=page_request.refused,
        guard=seen.guard,
        active=active,
        form=form,
        typed={**form.values, **(page_request.typed or {})},
        errors=errors_by_field(page_request.refused or ""),
        run=run,
        grid=build_grid(snapshot, seen.joined, seen.registered, seen.at),
        legend=LEGEND,
        heat=None if run is None else draw_heat_map(run.collaboration),
        rounds=() if snapshot is None else round_rows(snapshot),
        members=() if run is None else client_rows(run),
        quarantined=seen.quarantined[:SHOWN_CLIENTS],
        charts=() if run is None else run_charts(run),
        constants=() if run is None else constant_scalars(run),
        purpose=describe_purpose,
        runs=seen.runs[: -SHOWN_RUNS - 1 : -1],
        arrived=arrivals_page(seen.arrivals, page_request.run),
        declared=describe_declaration(seen.declaration),
    )


REFUSALS = (ConflictError, ForbiddenError, NotFoundError, ProtocolError, SettingsError)
RUN: TypeAdapter[str] = TypeAdapter(RunPath)

FORM_BODY = {"requestBody": {"required": True, "content": {FORM: {}}}}

router = APIRouter(include_in_schema=False, dependencies=[Depends(require_operator_login)], route_class=DeclaredRoute)
forms = APIRouter(include_in_schema=False, dependencies=[Depends(require_operator_form)], route_class=DeclaredRoute)


def install(app: FastAPI) -> None:
    """Serves the operator's page at / and its public static files."""
    app.include_router(router)
    app.include_router(forms)
    app.include_router(static_router)


@router.get("/")
async def show(
    request: Request,
    service: Service,
    run: Annotated[str | None, Query(pattern=r"^run-[0-9]{1,9}$")] = None,
    before: Annotated[int | None, Query(ge=1, lt=1 << 53)] = None,
) -> Response:
    seen = await collect_content(service, PageRequest(str(request.base_url), run, before))
    return page_response(request, await run_in_worker(render_page, seen))


@forms.post("/start", openapi_extra=FORM_BODY)
async def start(request: Request, service: Service) -> Response:
    """Starts the run of the form and shows it.

    Shows the page with the reason where refused.
    """
    fields: dict[str, str] = {}
    try:
        fields = await read_form(request, service.operator_token)
        await service.start_run(read_start(fields, await service.run_histories(), service.settings.method))
    except REFUSALS as error:
        return await _show_refusal(request, service, error, fields)
    return RedirectResponse("./", 303)


@forms.post("/cancel", openapi_extra=FORM_BODY)
async def cancel(request: Request, service: Service) -> Response:
    """Cancels the run of the form and shows it.

    Shows the page with the reason where refused.
    """
    try:
        name = _read_run(await read_form(request, service.operator_token))
        await service.cancel_run(name)
    except REFUSALS as error:
        return await _show_refusal(request, service, error, {})
    return RedirectResponse(f"./?run={name}", 303)


def _read_run(fields: dict[str, str]) -> str:
    try:
        return RUN.validate_python(fields.get("run"))
    except ValidationError:
        raise ProtocolError("run: expected the name of a run, got something else") from None


async def _show_refusal(request: Request, service: Service, error: FederationError, fields: dict[str, str]) -> Response:
    typed = {name: fields[name] for name in FIELDS if name in fields}
    page_request = PageRequest(str(request.base_url), refused=str(error), typed=typed)
    seen = await collect_content(service, page_request)
    return refusal_page(await run_in_worker(render_page, seen), find_status(error))
