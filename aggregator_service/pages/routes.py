"""HTTP -> the operator's page and its two forms. It names clients, so nobody else may see it."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import TypeAdapter, ValidationError

from aggregator_service.http.authentication import Service, operator_at_browser, operator_at_form
from aggregator_service.http.routes import RunPath
from aggregator_service.pages.forms import FIELDS, read_form, read_start
from aggregator_service.pages.view import PageQuestion, collect_figures, render_page
from aggregator_service.process import off_loop
from shared.errors import ConflictError, FederationError, ForbiddenError, NotFoundError, ProtocolError, SettingsError
from shared.web.content_types import FORM
from shared.web.pages import page, refused_page, statics
from shared.web.problems import status_of
from shared.web.routes import DeclaredRoute

REFUSALS = (ConflictError, ForbiddenError, NotFoundError, ProtocolError, SettingsError)
RUN: TypeAdapter[str] = TypeAdapter(RunPath)

FORM_BODY = {"requestBody": {"required": True, "content": {FORM: {}}}}

router = APIRouter(include_in_schema=False, dependencies=[Depends(operator_at_browser)], route_class=DeclaredRoute)
forms = APIRouter(include_in_schema=False, dependencies=[Depends(operator_at_form)], route_class=DeclaredRoute)


def install(app: FastAPI) -> None:
    """Serve the operator's page at /, and the files that it loads to whoever asks: they hold nothing."""
    app.include_router(router)
    app.include_router(forms)
    app.include_router(statics)


@router.get("/")
async def show(
    request: Request,
    service: Service,
    run: Annotated[str | None, Query(pattern=r"^run-[0-9]{1,9}$")] = None,
    before: Annotated[int | None, Query(ge=1, lt=1 << 53)] = None,
) -> Response:
    seen = await collect_figures(service, PageQuestion(str(request.base_url), run, before))
    return page(request, await off_loop(render_page, seen))


@forms.post("/start", openapi_extra=FORM_BODY)
async def start(request: Request, service: Service) -> Response:
    """Start a run as the form says, and show it; or the page again, with the reason."""
    fields: dict[str, str] = {}
    try:
        fields = await read_form(request, service.operator_token)
        await service.start_run(read_start(fields, await service.run_histories(), service.settings.method))
    except REFUSALS as error:
        return await _show_refusal(request, service, error, fields)
    return RedirectResponse("./", 303)


@forms.post("/cancel", openapi_extra=FORM_BODY)
async def cancel(request: Request, service: Service) -> Response:
    """Cancel the run that the form names, and show it; or the page again, with the reason."""
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
    asked = PageQuestion(str(request.base_url), refused=str(error), typed=typed)
    seen = await collect_figures(service, asked)
    return refused_page(await off_loop(render_page, seen), status_of(error))
