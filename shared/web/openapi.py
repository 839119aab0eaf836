"""OpenAPI documents of both services: refusals, examples, code samples, and the page /docs."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final
from urllib.parse import quote

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from starlette.types import Lifespan

from shared.protocol.problem import ProblemOut
from shared.web.middleware import FrontedApp
from shared.web.pages import FOLDER, load_templates, page_response, security_headers
from shared.web.problems import MARK, MEDIA_TYPE, describe_refusal
from shared.web.routes import JSON, DeclaredRoute

WRITES = ("post", "put", "delete")


def list_refusals(document: Mapping[str, Any]) -> None:
    """Replaces the 4XX mark of each operation by the statuses that it can answer."""
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


REFERENCE = "#/components/schemas/"
NONE: Final = object()
"""Mark of a schema without an example: it contains itself, or is text for which none is given."""
PLAIN: Mapping[str, Any] = {"boolean": True, "integer": 1, "number": 0.5, "null": None}
Schema = Mapping[str, Any]


def add_examples(document: Mapping[str, Any]) -> None:
    """Adds an example to every body that has none.

    Of a request the required fields, of an answer the usual ones.
    """
    maker = ExampleMaker(document["components"]["schemas"])
    for operation in list_operations(document):
        _show(operation.get("requestBody", {}), maker, whole=False)
        for status, answer in operation["responses"].items():
            if status.startswith("2"):
                _show(answer, maker, whole=True)


def list_operations(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    return (one for path in document["paths"].values() for one in path.values())


def _show(body: Mapping[str, Any], maker: ExampleMaker, *, whole: bool) -> None:
    content = body.get("content", {}).get(JSON)
    if content is None or "example" in content:
        return
    if (example := maker.make(content["schema"], whole=whole)) is not NONE:
        content["example"] = example


class ExampleMaker:
    """Maker of examples of schemas, with the named schemas of a document."""

    def __init__(self, schemas: Mapping[str, Schema]) -> None:
        self._schemas = schemas
        self._open: list[str] = []  # named schemas that an example is being made of

    def make(self, schema: Schema, *, whole: bool) -> Any:
        """Makes an example of a schema, or NONE.

        whole: also optional fields without an example of their own.
        """
        if "examples" in schema:
            return schema["examples"][0]
        if schema.get("default") not in (None, [], {}):
            return schema["default"]
        if "$ref" in schema:
            return self._make_named(schema["$ref"].removeprefix(REFERENCE), whole)
        if "anyOf" in schema:
            return self.make(next(one for one in schema["anyOf"] if one.get("type") != "null"), whole=whole)
        if schema.get("type") == "array":
            return self._make_list(schema, whole)
        if schema.get("type") == "object":
            return self._make_object(schema, whole)
        return _make_plain(schema)

    def _make_named(self, name: str, whole: bool) -> Any:
        if name in self._open:
            return NONE
        self._open.append(name)
        try:
            return self.make(self._schemas[name], whole=whole)
        finally:
            self._open.pop()

    def _make_list(self, schema: Schema, whole: bool) -> Any:
        one = self.make(schema.get("items", {}), whole=whole)
        if one is NONE:
            return NONE if schema.get("minItems") else []
        return [one]

    def _make_object(self, schema: Schema, whole: bool) -> Any:
        if "properties" not in schema:
            return self._make_mapping(schema, whole)
        needed, found = schema.get("required", ()), {}
        for name, field in schema["properties"].items():
            if name in needed or "examples" in field or (whole and not _is_exception(field)):
                found[name] = self.make(field, whole=whole)
        if any(found[name] is NONE for name in needed):
            return NONE
        return {name: value for name, value in found.items() if value is not NONE}

    def _make_mapping(self, schema: Schema, whole: bool) -> Any:
        """Makes a mapping with one entry, where its names and values have schemas."""
        names, patterns = schema.get("propertyNames"), schema.get("patternProperties", {})
        values = schema.get("additionalProperties") or next(iter(patterns.values()), None)
        if not isinstance(values, Mapping) or names is None:
            return {}
        name, value = self.make(names, whole=whole), self.make(values, whole=whole)
        return {} if NONE in (name, value) else {name: value}


def _is_exception(field: Schema) -> bool:
    """Tells whether an optional field is usually absent, so that examples leave it out."""
    kinds = [one for one in field.get("anyOf", ()) if one.get("type") != "null"]
    return bool(kinds) and field.get("default") is None and not {"$ref", "examples"} & kinds[0].keys()


def _make_plain(schema: Schema) -> Any:
    """Makes the simplest value within its range; NONE for text."""
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("format") == "date-time":
        return "2026-01-31T12:00:00Z"
    if schema.get("type") not in PLAIN:
        return NONE
    value = PLAIN[schema["type"]]
    if schema["type"] not in ("integer", "number"):
        return value
    bounded = min(max(value, schema.get("minimum", value)), schema.get("maximum", value))
    return int(bounded) if schema["type"] == "integer" else bounded


FIELD = "x-codeSamples"  # as the tools that show such documents expect it
SHORT = 60  # characters
BY_BEARER: Mapping[str, list[str]] = {"HTTPBearer": []}


@dataclass(frozen=True)
class SampleCall:
    """Call that a code sample makes.

    body: None if there is none. keyed: with an Authorization header.
    """

    method: str
    address: str
    body: Any
    keyed: bool


def add_samples(document: Mapping[str, Any], address: str) -> None:
    """Adds code samples to each call, except those that clients sign."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            security = operation.get("security", [])
            if not security or BY_BEARER in security:
                call = _read_call(method.upper(), address + path, operation)
                operation[FIELD] = [
                    {"lang": "Shell", "label": "curl", "source": write_curl(call)},
                    {"lang": "Python", "label": "Python", "source": write_python(call)},
                    {"lang": "JavaScript", "label": "JavaScript", "source": write_javascript(call)},
                ]


def _read_call(method: str, address: str, operation: Mapping[str, Any]) -> SampleCall:
    for one in operation.get("parameters", ()):
        if one["in"] == "path" and "examples" in one["schema"]:
            address = address.replace(f"{{{one['name']}}}", quote(str(one["schema"]["examples"][0]), safe=""))
    body = operation.get("requestBody", {}).get("content", {}).get(JSON, {}).get("example")
    return SampleCall(method, address, body, BY_BEARER in operation.get("security", []))


def write_curl(call: SampleCall) -> str:
    """Writes a call for a shell, with the key as $KEY."""
    lines = [f"curl {call.address}" if call.method == "GET" else f"curl -X {call.method} {call.address}"]
    if call.keyed:
        lines.append('-H "Authorization: Bearer $KEY"')
    if call.body is not None:
        lines += [f"-H 'Content-Type: {JSON}'", f"-d {shlex.quote(json.dumps(call.body))}"]
    return " \\\n    ".join(lines)


def write_python(call: SampleCall) -> str:
    """Writes a call for Python, with the key as `key`."""
    words = [json.dumps(call.method), json.dumps(call.address)]
    words += ['headers={"Authorization": f"Bearer {key}"}'] if call.keyed else []
    words += [f"json={call.body!r}"] if call.body is not None else []
    return (
        f"import httpx\n\nanswer = httpx.request({_write_lines(words)})\nanswer.raise_for_status()\nprint(answer.text)"
    )


def write_javascript(call: SampleCall) -> str:
    """Writes a call for JavaScript, with the key as `key`."""
    headers = ["Authorization: `Bearer ${key}`"] if call.keyed else []
    headers += [f'"Content-Type": {json.dumps(JSON)}'] if call.body is not None else []
    options = [f"method: {json.dumps(call.method)}"]
    options += [f"headers: {{{', '.join(headers)}}}"] if headers else []
    options += [f"body: JSON.stringify({json.dumps(call.body)})"] if call.body is not None else []
    return (
        f"const answer = await fetch({json.dumps(call.address)}, {{{_write_lines(options)}}});\n"
        "if (!answer.ok) throw new Error((await answer.json()).detail);\n"
        "console.log(await answer.text());"
    )


def _write_lines(words: Sequence[str]) -> str:
    """Joins arguments on one line if they are short, else one a line."""
    together = ", ".join(words)
    return together if len(together) <= SHORT else "".join(f"\n    {word}," for word in words) + "\n"


TEMPLATE = load_templates(FOLDER / "templates").get_template("reference.html")
HEADERS = security_headers(images="'self' data:")  # the style sheet of Swagger UI holds its images in itself

router = APIRouter(include_in_schema=False, route_class=DeclaredRoute)


def add_reference_routes(app: FastAPI) -> None:
    """Adds /openapi.json and /docs to an app."""
    app.include_router(router)


@router.get("/openapi.json")
async def read_document(request: Request) -> Response:
    """Returns the OpenAPI document, whose first server is the address of the request."""
    document, here = request.app.openapi(), str(request.base_url).rstrip("/")
    own_server = {"url": here, "description": "address of this document"}
    return JSONResponse(document | {"servers": [own_server, *document.get("servers", [])[1:]]})


@router.get("/docs")
async def show_reference(request: Request) -> Response:
    return page_response(request, TEMPLATE.render(title=request.app.title), HEADERS)


FRAMEWORK_DESCRIPTION = "Successful Response"  # the framework's words
NO_CONTENT = "done; there is nothing to say"


def create_api(title: str, about: str, address: str, lifespan: Lifespan[FastAPI]) -> FrontedApp:
    """Makes a FastAPI app with this description, without the framework's own pages.

    title: generators name their package after it. address: the code samples call it.
    """
    app = FrontedApp(
        title=title,
        description=about,
        version=package_version(),
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,  # another path is another resource, which may be another user's
        servers=[
            {"url": address, "description": "address in the code samples: a service on this machine"},
            {"url": ".", "description": "the service that serves this document"},
        ],
        generate_unique_id_function=name_operation,
        separate_input_output_schemas=False,  # generators name both alike
    )
    app.openapi = partial(_write, app.openapi, address)  # type: ignore[method-assign]
    return app


def name_operation(route: APIRoute) -> str:
    """Returns the `operationId` of a route, after which generators name their functions."""
    return route.name


def package_version() -> str:
    """Returns the version of the installed package; 0 if it is not installed."""
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
    """Sets an answer's description from its schema, and marks problems as problem+json."""
    content = answer.get("content", {})
    schema = content.get(JSON, {}).get("schema", {})
    if _name(schema) == ProblemOut.__name__:
        content[MEDIA_TYPE] = content.pop(JSON)
    if answer["description"] == FRAMEWORK_DESCRIPTION:
        answer["description"] = NO_CONTENT if status == "204" else _describe_schema(schema, schemas)


def _describe_schema(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    if schema.get("type") == "array":
        return f"A list, each: {_describe_schema(schema['items'], schemas)}"
    said: str = schemas.get(_name(schema), schema).get("description", FRAMEWORK_DESCRIPTION)
    return said.partition("\n\n")[0].replace("\n", " ")


def _name(schema: Mapping[str, Any]) -> str:
    return str(schema.get("$ref", "")).removeprefix(REFERENCE)
