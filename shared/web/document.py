"""An app -> its OpenAPI document, with what the framework does not: refusals, answers, examples, lines of code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from starlette.types import Lifespan

from shared.protocol.problem import ProblemOut
from shared.web.examples import JSON, REFERENCE, add_examples, list_operations
from shared.web.problems import MEDIA_TYPE
from shared.web.refusals import list_refusals
from shared.web.samples import add_samples

UNTOLD = "Successful Response"  # the framework's words
NO_CONTENT = "done; there is nothing to say"


def new_app(title: str, about: str, address: str, lifespan: Lifespan[FastAPI]) -> FastAPI:
    """An app that describes itself so, and has none of the framework's own pages. title: after which generators name
    their package; address: where the lines call it."""
    app = FastAPI(
        title=title,
        description=about,
        version=package_version(),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,  # another path is another resource, which may be another user's
        servers=[
            {"url": address, "description": "where the lines of code call it: a service on this machine"},
            {"url": ".", "description": "whoever has given this document, seen from its address"},
        ],
        generate_unique_id_function=name_operation,
        separate_input_output_schemas=False,  # generators name both alike
    )
    app.openapi = partial(_write, app.openapi, address)  # type: ignore[method-assign]
    return app


def name_operation(route: APIRoute) -> str:
    """The `operationId`, after which generators name their functions: that of the route's own function."""
    return route.name


def package_version() -> str:
    """Of the installed package; 0 where the code runs from a folder."""
    try:
        return version("lpsfed")
    except PackageNotFoundError:
        return "0"


def _write(describe: Callable[[], dict[str, Any]], address: str) -> dict[str, Any]:
    document = describe()
    list_refusals(document)
    for operation in list_operations(document):
        for status, answer in operation["responses"].items():
            _describe_answer(status, answer, document["components"]["schemas"])
    add_examples(document)
    add_samples(document, address)
    return document


def _describe_answer(status: str, answer: dict[str, Any], schemas: Mapping[str, Any]) -> None:
    """Say what comes, by the message's own words; the framework writes problems as plain JSON, which they are not."""
    content = answer.get("content", {})
    schema = content.get(JSON, {}).get("schema", {})
    if _name(schema) == ProblemOut.__name__:
        content[MEDIA_TYPE] = content.pop(JSON)
    if answer["description"] == UNTOLD:
        answer["description"] = NO_CONTENT if status == "204" else _describe_schema(schema, schemas)


def _describe_schema(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    if schema.get("type") == "array":
        return f"A list, each: {_describe_schema(schema['items'], schemas)}"
    said: str = schemas.get(_name(schema), schema).get("description", UNTOLD)
    return said.partition("\n\n")[0].replace("\n", " ")


def _name(schema: Mapping[str, Any]) -> str:
    return str(schema.get("$ref", "")).removeprefix(REFERENCE)
