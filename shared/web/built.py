"""Routes that are built before the first request comes."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts


def build(app: FastAPI) -> None:
    """Build what each route reads and answers now, as the last step of making an app.

    FastAPI puts this off until a request asks for a router, and filters warnings for the whole process while it
    builds: two threads that do so at once undo each other's filters, and a request pays for it.
    """
    for _ in iter_route_contexts(app.routes):
        pass
