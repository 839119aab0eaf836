"""The page at /docs: Swagger UI, as FastAPI shows it, from files of this package and without a script in the page."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI, Request, Response

from shared.web.pages import FOLDER, guard_headers, page, templates

TEMPLATE = templates(FOLDER / "templates").get_template("reference.html")
HEADERS = guard_headers(images="'self' data:")  # the style sheet of Swagger UI holds its images in itself

router = APIRouter(include_in_schema=False)


def install(app: FastAPI) -> None:
    """Serve the reference of this app at /docs to whoever asks, as /openapi.json is."""
    app.include_router(router)


@router.get("/docs")
async def show_reference(request: Request) -> Response:
    return page(request, TEMPLATE.render(title=request.app.title), HEADERS)
