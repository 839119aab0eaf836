"""The reference says every call of a document in words, and its page loads nothing from elsewhere."""

from __future__ import annotations

import html
import re
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from shared.web import problems, reference
from shared.web.pages import GUARDED, statics
from shared.web.reference import Body, Operation, Part, grouped, kind, operations

NAMED = {
    "Order": {
        "properties": {
            "lines": {"type": "array", "items": {"$ref": "#/components/schemas/Line"}, "description": "one\nor more"},
            "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "required": ["lines"],
    }
}
READ = {
    "tags": ["orders", "all"],
    "summary": "Read Order",
    "description": "As it stands.\nIn full.",
    "security": [{"bearer": []}],
    "parameters": [
        {"name": "id", "in": "path", "required": True, "schema": {"type": "integer"}, "description": "its number"},
        {"name": "k", "in": "query", "schema": {"type": "boolean"}},
    ],
}
PUT = {"requestBody": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Order"}}}}}
RAW = {"requestBody": {"content": {"image/png": {"schema": {"type": "string", "format": "binary"}}}}}
DOCUMENT = {
    "paths": {"/orders/{id}": {"get": READ, "put": PUT, "parameters": []}, "/picture": {"post": RAW}},
    "components": {"schemas": NAMED},
}


def test_operations_are_told_in_the_document_s_order() -> None:
    read, put, raw = operations(DOCUMENT)
    parameters = (Part("id", "path", True, "integer", "its number"), Part("k", "query", False, "boolean", ""))
    assert read == Operation(
        "orders", "GET", "/orders/{id}", "Read Order", "As it stands.", True, parameters, body=None
    )
    fields = (Part("lines", "body", True, "list of Line", "one"), Part("note", "body", False, "string or null", ""))
    body = Body("Order", "application/json", fields)
    assert put == Operation("other", "PUT", "/orders/{id}", "", "", False, (), body)
    assert raw.body == Body("binary string", "image/png", ()) and raw.path == "/picture"
    assert grouped([read, put, raw]) == {"orders": [read], "other": [put, raw]}
    assert operations({"paths": {}}) == []


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({}, "anything"),
        ({"const": "F32", "type": "string"}, "'F32'"),
        ({"enum": ["a", 2], "type": "string"}, "'a' or 2"),
        ({"type": "array"}, "list of anything"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "object of number"),
        ({"type": "object", "additionalProperties": True}, "object"),
        ({"allOf": [{"$ref": "#/components/schemas/Order"}]}, "Order"),
    ],
)
def test_a_type_is_said_in_words(schema: dict[str, Any], said: str) -> None:
    assert kind(schema) == said


@pytest.mark.anyio
async def test_the_page_holds_every_route_escaped_and_is_guarded() -> None:
    app = FastAPI(title="A <service>", docs_url=None, redoc_url=None)

    @app.get("/late/{one}", description="<script>alert(1)</script>", tags=["late"])
    async def late(one: int) -> None:
        del one

    reference.install(app)
    app.include_router(statics)
    problems.install(app)
    app.post("/later/{one}")(late)  # what comes after it stands on the page too
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as http:
        answer = await http.get("/docs")
        again = await http.get("/docs", headers={"If-None-Match": answer.headers["etag"]})
        links = re.findall(r'(?:src|href)="([^"#]+)"', answer.text)
        found = {link: (await http.get(f"/{link}")).status_code for link in links if link not in ("./", "metrics")}
    assert (answer.status_code, again.status_code) == (200, 304)
    assert {name: answer.headers[name] for name in GUARDED} == GUARDED
    assert "<script" not in answer.text and "A &lt;service&gt;" in answer.text
    text = html.unescape(answer.text)
    assert "GET /late/{one}" in text and "POST /later/{one}" in text and "<script>alert(1)</script>" in text
    assert {"openapi.json", "docs", "static/page.css", "static/icon.svg"} == set(found)
    assert set(found.values()) == {200}
