"""A service's own OpenAPI document -> the page at /docs, which says every call and loads nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response

from shared.web.pages import FOLDER, Head, page, templates

METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
UNTAGGED = "other"
TEMPLATE = templates(FOLDER / "templates").get_template("reference.html")

Schema = dict[str, Any]

router = APIRouter(include_in_schema=False)


@dataclass(frozen=True)
class Part:
    """One thing that a caller gives. `place`: path, query, header, cookie or body."""

    name: str
    place: str
    needed: bool
    kind: str
    note: str


@dataclass(frozen=True)
class Body:
    """What a caller sends: the schema's name, its media type, and its fields where it has any."""

    name: str
    media: str
    fields: tuple[Part, ...]


@dataclass(frozen=True)
class Operation:
    """One method of one path. `secret`: the caller has to say who it is."""

    tag: str
    method: str
    path: str
    title: str
    note: str
    secret: bool
    parameters: tuple[Part, ...]
    body: Body | None


def install(app: FastAPI) -> None:
    """Serve the reference of this app at /docs to whoever asks, as /openapi.json is."""
    app.state.reference = Reference(app)
    app.include_router(router)


class Reference:
    """The page of one app, rendered when it is first asked for: by then every route is there."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    @cached_property
    def html(self) -> str:
        groups = grouped(operations(self._app.openapi()))
        sections = tuple((tag, tag.capitalize()) for tag in groups)
        return TEMPLATE.render(head=Head(self._app.title, "API reference", "docs", sections), groups=groups)


# Not async, so that the rendering goes through a worker thread and the event loop stays free.
@router.get("/docs")
def show(request: Request) -> Response:
    reference: Reference = request.app.state.reference
    return page(request, reference.html)


def operations(schema: Schema) -> list[Operation]:
    """Every operation of an OpenAPI document as FastAPI writes it, in the document's order."""
    named = schema.get("components", {}).get("schemas", {})
    return [
        _operation(path, method, said, named)
        for path, methods in schema["paths"].items()
        for method, said in methods.items()
        if method in METHODS
    ]


def grouped(found: Sequence[Operation]) -> dict[str, list[Operation]]:
    """The operations by tag, tags in the order in which they first come."""
    groups: dict[str, list[Operation]] = {}
    for one in found:
        groups.setdefault(one.tag, []).append(one)
    return groups


def kind(schema: Schema) -> str:
    """A JSON schema's type in words; of a schema with a name, the name."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if choices := schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf"):
        return " or ".join(map(kind, choices))
    if "const" in schema or "enum" in schema:
        return " or ".join(repr(value) for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        return f"list of {kind(schema.get('items', {}))}"
    if isinstance(values := schema.get("additionalProperties"), dict):
        return f"object of {kind(values)}"
    return " ".join(filter(None, (schema.get("format"), schema.get("type", "anything"))))


def _operation(path: str, method: str, said: Schema, named: Schema) -> Operation:
    return Operation(
        tag=next(iter(said.get("tags", ())), UNTAGGED),
        method=method.upper(),
        path=path,
        title=said.get("summary", ""),
        note=_first_line(said),
        secret=bool(said.get("security")),
        parameters=tuple(_parameter(one) for one in said.get("parameters", ())),
        body=_body(said["requestBody"]["content"], named) if "requestBody" in said else None,
    )


def _parameter(said: Schema) -> Part:
    return Part(said["name"], said["in"], said.get("required", False), kind(said["schema"]), _first_line(said))


def _body(content: Schema, named: Schema) -> Body:
    media, schema = next((media, said["schema"]) for media, said in content.items())
    name = kind(schema)
    return Body(name, media, tuple(_fields(named[name] if "$ref" in schema else schema)))


def _fields(schema: Schema) -> Iterator[Part]:
    needed = schema.get("required", ())
    for name, said in schema.get("properties", {}).items():
        yield Part(name, "body", name in needed, kind(said), _first_line(said))


def _first_line(said: Schema) -> str:
    return str(said.get("description", "")).partition("\n")[0]
