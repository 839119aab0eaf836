"""An OpenAPI document -> the same with each refusal that a call can meet, by its status."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

MARK = "4XX"  # where a route says that it refuses by problem documents
WRITES = ("post", "put", "delete")


def list_refusals(document: Mapping[str, Any]) -> None:
    """Replace the mark of each operation by the statuses that follow from what the operation has."""
    for path in document["paths"].values():
        for method, operation in path.items():
            if (refusal := operation["responses"].pop(MARK, None)) is not None:
                listed = {str(status): _refusal_of(refusal, status) for status in _statuses(method, operation)}
                operation["responses"] = listed | operation["responses"]


def _refusal_of(refusal: Mapping[str, Any], status: int) -> dict[str, Any]:
    return {**refusal, "description": describe_refusal(status)}


def _statuses(method: str, operation: Mapping[str, Any]) -> Iterator[int]:
    places = {one["in"] for one in operation.get("parameters", ())}
    yield 400
    if "security" in operation:
        yield from (401, 403)
    if "path" in places or method in WRITES:
        yield 404
    if method in WRITES:
        yield 409
    if "requestBody" in operation:
        yield from (408, 413, 415)
    yield from (421, 422, 429, 431, 503)
    if method in WRITES:
        yield 507


def describe_refusal(status: int, when: str = "") -> str:
    """A refusal in words. `when`: what it means here, where the status alone does not say it."""
    return f"{HTTPStatus(status).phrase}{when and f', {when}'}: a problem document (RFC 9457)"
