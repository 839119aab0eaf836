"""The document at /openapi.json, and the page at /docs that shows it: Swagger UI from files of this package, without a
script in the page."""

from __future__ import annotations

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse

from shared.web.pages import FOLDER, guard_headers, page, templates
from shared.web.routes import DeclaredRoute

TEMPLATE = templates(FOLDER / "templates").get_template("reference.html")
HEADERS = guard_headers(images="'self' data:")  # the style sheet of Swagger UI holds its images in itself

router = APIRouter(include_in_schema=False, route_class=DeclaredRoute)


def install(app: FastAPI) -> None:
    """Serve the reference of this app to whoever asks."""
    app.include_router(router)


@router.get("/openapi.json")
async def read_document(request: Request) -> Response:
    """The document, whose first server is the address by which it was asked for: where a generated client calls."""
    document, here = request.app.openapi(), str(request.base_url).rstrip("/")
    asked = {"url": here, "description": "where this document was asked for"}
    return JSONResponse(document | {"servers": [asked, *document.get("servers", [])[1:]]})


@router.get("/docs")
async def show_reference(request: Request) -> Response:
    return page(request, TEMPLATE.render(title=request.app.title), HEADERS)
