"""Both OpenAPI documents are whole: whatever they name is described, ranged and shown by an example that is valid."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
from fastapi import FastAPI
from jsonschema import Draft202012Validator

from aggregator_service.app import create_app as create_aggregator
from client_service.app import create_app as create_client
from shared.errors import FaultCode
from tests.support.small import small_aggregator, small_client

JSON = "application/json"
NOWHERE = Path("unused")
COUNTED = {"minimum", "exclusiveMinimum"}


APPS: dict[str, Callable[[], FastAPI]] = {
    "aggregator": lambda: create_aggregator(small_aggregator(NOWHERE)),
    "secure aggregator": lambda: create_aggregator(small_aggregator(NOWHERE, secure=True)),
    "client": lambda: create_client(small_client(NOWHERE, NOWHERE)),
}
every_document = pytest.mark.parametrize("document", APPS, indirect=True)


@cache
def read_document(name: str) -> dict[str, Any]:
    """Return an app's document; it is not made while tests are collected, because that takes long."""
    return APPS[name]().openapi()


@pytest.fixture
def document(request: pytest.FixtureRequest) -> dict[str, Any]:
    return read_document(request.param)


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, one in methods.items():
            yield f"{method.upper()} {path}", one


def parameters(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, one in operations(document):
        yield from ((name, parameter) for parameter in one.get("parameters", ()))


def fields(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every field of every message."""
    for name, schema in document["components"]["schemas"].items():
        for field, what in schema.get("properties", {}).items():
            yield f"{name}.{field}", what


def bodies(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every body of JSON that goes in or comes back, problem documents left out."""
    for name, one in operations(document):
        answers = {status: what for status, what in one["responses"].items() if status < "300"}
        for place, what in {"body": one.get("requestBody", {}), **answers}.items():
            if JSON in what.get("content", {}):
                yield f"{name}, {place}", what["content"][JSON]


@every_document
def test_the_service_its_operations_and_their_answers_are_described(document: dict[str, Any]) -> None:
    assert {"title", "version", "description"} <= document["info"].keys()
    assert [name for name, one in operations(document) if not one.get("description")] == []
    answers = [
        f"{name}, {status}: {what['description']!r}"
        for name, one in operations(document)
        for status, what in one["responses"].items()
        if what["description"] in ("", "Successful Response")
    ]
    assert answers == []


@every_document
def test_every_message_and_every_field_is_described(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    assert [name for name, schema in schemas.items() if not schema.get("description")] == []
    assert [name for name, field in fields(document) if not field.get("description")] == []


@every_document
def test_every_parameter_is_described_and_shown(document: dict[str, Any]) -> None:
    found = [(f"{name}, {one['name']}", one) for name, one in parameters(document)]
    assert len(found) > 5
    assert [name for name, one in found if not one.get("description")] == []
    for name, one in found:
        [example, *_] = one["schema"].get("examples") or [None]
        assert example is not None, f"{name}: expected an example"
        validate(document, one["schema"], example, name)


@every_document
def test_every_number_that_has_a_range_says_so(document: dict[str, Any]) -> None:
    asked = [(f"{name}, {one['name']}", one["schema"]) for name, one in parameters(document)]
    every = (*asked, *fields(document))
    assert [name for name, schema in every if unbounded(schema, "integer")] == []
    assert [name for name, schema in every if unbounded(schema, "number") and not is_answered(name)] == []


def is_answered(name: str) -> bool:
    """A figure that only a service says, or a rating, on a scale of the silo's own: what it measures has no bounds."""
    return name.partition(".")[0].endswith(("Out", "RoundQuality")) or name == "InteractionIn.rating"


def unbounded(schema: dict[str, Any], kind: str) -> bool:
    kinds = [one for one in (schema, *schema.get("anyOf", ())) if one.get("type") == kind and "const" not in one]
    return any(not COUNTED & one.keys() for one in kinds)


@every_document
def test_every_body_is_shown_by_an_example_that_is_valid(document: dict[str, Any]) -> None:
    found = dict(bodies(document))
    assert len(found) > 10
    for name, content in found.items():
        assert "example" in content, f"{name}: expected an example"
        validate(document, content["schema"], content["example"], name)


def validate(document: dict[str, Any], schema: dict[str, Any], example: object, name: str) -> None:
    whole = {**schema, "components": document["components"]}
    faults = [fault.message for fault in Draft202012Validator(whole).iter_errors(example)]
    assert faults == [], f"{name}: {faults}"


OPERATIONS = {
    "recommend": "GET /v1/users/{user}/recommendations",
    "recommend_batch": "POST /v1/recommendations",
    "predict_next": "POST /v1/next",
    "search_items": "GET /v1/items",
    "put_item": "PUT /v1/items/{item}",
    "post_interactions": "POST /v1/interactions",
    "erase_user": "DELETE /v1/users/{user}",
    "read_metrics": "GET /metrics",
}


@every_document
def test_operations_have_short_names_of_their_own_for_generated_code(document: dict[str, Any]) -> None:
    names = [one["operationId"] for _, one in operations(document)]
    assert len(set(names)) == len(names) > 15
    assert [name for name in names if not re.fullmatch(r"[a-z]+(_[a-z]+){0,2}", name)] == []
    assert not any("-" in name for name in document["components"]["schemas"])  # one schema in and out


def test_applications_call_by_these_names() -> None:
    named = {one["operationId"]: name for name, one in operations(read_document("client"))}
    assert {name: named.get(name) for name in OPERATIONS} == OPERATIONS


@pytest.mark.parametrize(
    ("which", "title", "address"),
    [("client", "LPSFed", "http://127.0.0.1:8801"), ("aggregator", "LPSFed aggregator", "http://127.0.0.1:8800")],
)
def test_the_document_names_its_product_and_its_servers(which: str, title: str, address: str) -> None:
    assert read_document(which)["info"]["title"] == title
    assert [one["url"] for one in read_document(which)["servers"]] == [address, "."]


def test_each_kind_of_fault_is_described() -> None:
    for document in map(read_document, APPS):
        fault = document["components"]["schemas"]["FaultOut"]["properties"]["code"]
        assert {*fault["enum"]} == {*get_args(FaultCode)} and all(
            f"`{code}`: " in fault["description"] for code in fault["enum"]
        )
