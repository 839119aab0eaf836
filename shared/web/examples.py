"""An OpenAPI document -> the same with an example of each body of JSON, put together from its fields' own examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

JSON = "application/json"
REFERENCE = "#/components/schemas/"
NONE: Final = object()
"""There is no example: what is asked for holds itself, or is text that has none of its own."""
PLAIN: Mapping[str, Any] = {"boolean": True, "integer": 1, "number": 0.5, "null": None}
Schema = Mapping[str, Any]


def add_examples(document: Mapping[str, Any]) -> None:
    """Show every body that has none: of a request what must be said, of an answer all that is usually there."""
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
    """Examples of schemas, those that are named among `schemas`."""

    def __init__(self, schemas: Mapping[str, Schema]) -> None:
        self._schemas = schemas
        self._open: list[str] = []  # named schemas that an example is being made of

    def make(self, schema: Schema, *, whole: bool) -> Any:
        """An example, or NONE. whole: with fields that may be left out even where they have no example of their own."""
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
        """One entry, where names and values are told."""
        names, values = schema.get("propertyNames"), schema.get("additionalProperties")
        if not isinstance(values, Mapping) or names is None:
            return {}
        name, value = self.make(names, whole=whole), self.make(values, whole=whole)
        return {} if NONE in (name, value) else {name: value}


def _is_exception(field: Schema) -> bool:
    """Does a plain value stand there in some cases alone? It is left out of what is usual."""
    kinds = [one for one in field.get("anyOf", ()) if one.get("type") != "null"]
    return bool(kinds) and field.get("default") is None and not {"$ref", "examples"} & kinds[0].keys()


def _make_plain(schema: Schema) -> Any:
    """The simplest value, within its range; NONE for text, which only an example could show."""
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
