"""Route of the silo's page for its operator; the page is read-only."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, FastAPI, Query, Request, Response

from client_service.federation.run_setup import list_protection_limits
from client_service.http.authentication import OperatorPageRoute
from client_service.http.service import ClientService
from client_service.pages.charts import (
    comparison_chart,
    describe_homophily,
    draw_measures,
    draw_spectrum,
    graph_charts,
    runs_table,
)
from client_service.pages.ledger_view import SHOWN, LedgerReader, list_entries
from client_service.pages.overview import build_overview, describe_sizes
from client_service.pages.privacy_report import build_report
from client_service.serving.ranking import LONGEST_FILTER
from client_service.settings import ClientSettings
from client_service.tasks.page_texts import SHOWN as LISTED
from client_service.tasks.page_texts import Question
from shared.sums import list_sums
from shared.web.pages import PageHead, load_templates, page_response, static_router

SECTIONS = (
    ("worth", "Gain"),
    ("recommendations", "Recommendations"),
    ("privacy", "Privacy"),
    ("learning", "Quality"),
)
TEMPLATE = load_templates(Path(__file__).parent / "templates").get_template("silo.html")

router = APIRouter(include_in_schema=False, route_class=OperatorPageRoute)


def install_page(app: FastAPI, service: ClientService) -> None:
    """Serves the page at /, and its public static files."""
    app.state.page = Page(service)
    app.include_router(router)
    app.include_router(static_router)


class Page:
    """Page of a silo: its service, and the reader of its ledger."""

    def __init__(self, service: ClientService) -> None:
        self.service = service

    @cached_property
    def record(self) -> LedgerReader:
        return LedgerReader(self.service.ledger, self.service.declaration())

    def html(self, before: int | None, question: Question) -> str:
        service, summary = self.service, self.record.update()
        status, quality, nouns = service.status(), service.quality(), service.task.nouns
        labels = tuple(service.task.labels.values())
        last = summary.written if before is None else min(before - 1, summary.written)
        return TEMPLATE.render(
            head=PageHead("LPSFed client", status.client, _address(before), SECTIONS),
            standing=build_overview(
                status,
                quality,
                summary,
                service.task.labels,
                nouns,
                strict=is_strict(service.settings),
                declared=list_sums(service.settings.method),
                limits=list_protection_limits(service.settings, service.settings.method),
            ),
            shard=describe_sizes(quality, nouns, counts_given=service.settings.policy.counts),
            worth=comparison_chart(quality, labels, nouns),
            runs_shown=runs_table(quality, labels, nouns),
            charts=(
                *draw_measures(quality, service.task),
                *(graph_charts(quality) or (draw_spectrum(service.spectrum()),)),
            ),
            graph=describe_homophily(quality),
            nouns=nouns,
            report=build_report(summary, service.declaration(), counts=service.settings.policy.counts),
            trial_shown=service.task.try_out(question, service.answers),
            journal_shown=list_entries(self.record.entries(last, SHOWN), last, summary),
        )


# Not async, so that reading and rendering go through a worker thread and the event loop stays free.
@router.get("/")
def show_page(
    request: Request,
    before: Annotated[int | None, Query(ge=1)] = None,
    user: Annotated[str | None, Query(max_length=512)] = None,
    item: Annotated[str | None, Query(max_length=512)] = None,
    basket: Annotated[str | None, Query(max_length=4096)] = None,
    filter: Annotated[str | None, Query(max_length=LONGEST_FILTER)] = None,
    k: Annotated[int, Query(ge=1, le=100)] = LISTED,
) -> Response:
    found: Page = request.app.state.page
    return page_response(request, found.html(before, Question(user, item, k, basket, filter)))


def is_strict(settings: ClientSettings) -> bool:
    """Tells whether the silo refuses sums of item statistics that its task could use."""
    return settings.policy.common_basis == "no" and settings.task == "items"


def _address(before: int | None) -> str:
    return "./" if before is None else f"./?before={before}"
