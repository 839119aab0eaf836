"""HTTP -> the operator's page. It names clients, so nobody else may see it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from urllib.parse import urlencode

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response

from aggregator_service.coordinator import Coordinator
from aggregator_service.http.callers import Service, operator_at_browser
from aggregator_service.pages.rows import SHOWN_CLIENTS, arrivals_page, clients, curves, rounds, window
from aggregator_service.pages.standing import standing
from aggregator_service.process import off_loop
from shared.method.declaration import Declaration
from shared.protocol.schemas import ArrivalsOut, MemberOut, RunHistoryOut
from shared.web.declared import declared_out
from shared.web.pages import PageHead, page, statics, templates

SECTIONS = (("rounds", "Rounds"), ("clients", "Clients"), ("runs", "Runs"), ("arrivals", "Arrivals"))
SHOWN_RUNS = 20
TEMPLATE = templates(Path(__file__).parent / "templates").get_template("federation.html")

router = APIRouter(include_in_schema=False, dependencies=[Depends(operator_at_browser)])


def install(app: FastAPI) -> None:
    """Serve the operator's page at /, and the files that it loads to whoever asks: they hold nothing."""
    app.include_router(router)
    app.include_router(statics)


@dataclass(frozen=True)
class FederationView:
    """What the page was asked for, and all that it shows; `history` is the chosen run's."""

    address: str
    url: str
    chosen: str | None
    joined: tuple[str, ...]
    runs: list[RunHistoryOut]
    history: RunHistoryOut | None
    quarantined: list[MemberOut]
    arrivals: ArrivalsOut
    declaration: Declaration


@router.get("/")
async def show(
    request: Request,
    service: Service,
    run: Annotated[str | None, Query(pattern=r"^run-[0-9]{1,9}$")] = None,
    before: Annotated[int | None, Query(ge=1, lt=1 << 53)] = None,
) -> Response:
    seen = await _collect_figures(service, str(request.base_url), run, before)
    return page(request, await off_loop(_render_page, seen))


async def _collect_figures(service: Coordinator, url: str, run: str | None, before: int | None) -> FederationView:
    runs, arrivals = await service.run_histories(), service.federation.arrivals
    name = run or (runs[-1].run if runs else None)
    after, limit = window((await arrivals.page(0, 1)).total, before)
    return FederationView(
        address=_address(run, before),
        url=url,
        chosen=run,
        joined=service.client_names,
        runs=runs,
        history=None if name is None else await service.run_history(name),
        quarantined=[one for one in await service.federation.quarantines.members() if one.quarantine is not None],
        arrivals=await arrivals.page(after, limit),
        declaration=service.declaration,
    )


def _render_page(seen: FederationView) -> str:
    run = seen.history
    return TEMPLATE.render(
        head=PageHead(f"LPSFed, strategy {seen.declaration.strategy}", "Aggregator", seen.address, SECTIONS),
        standing=standing(run, seen.joined, url=seen.url),
        run=run,
        rounds=() if run is None else rounds(run),
        members=() if run is None else clients(run),
        quarantined=seen.quarantined[:SHOWN_CLIENTS],
        charts=() if run is None else curves(run),
        runs=seen.runs[: -SHOWN_RUNS - 1 : -1],
        arrived=arrivals_page(seen.arrivals, seen.chosen),
        declared=declared_out(seen.declaration),
    )


def _address(run: str | None, before: int | None) -> str:
    asked = {name: value for name, value in (("run", run), ("before", before)) if value is not None}
    return f"./?{urlencode(asked)}" if asked else "./"
