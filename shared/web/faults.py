"""What validation says of a message -> each fault once, by its code and its place, without what came there."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from shared.errors import Fault, FaultCode

Where = tuple[int | str, ...]

TYPES: Final = {"string": "text", "int": "a whole number", "float": "a number", "bool": "true or false"}
KINDS: Final[Mapping[str, FaultCode]] = {
    "missing": "missing",
    "extra_forbidden": "unknown",
    "json_invalid": "not-json",
    "finite_number": "out-of-range",
    "int_parsing_size": "out-of-range",
    "multiple_of": "out-of-range",
    "string_pattern_mismatch": "wrong-form",
    "string_unicode": "wrong-form",
}
BY_FORM: Final[Sequence[tuple[re.Pattern[str], FaultCode]]] = (
    (re.compile("greater_than.*|less_than.*|.*too_(short|long)"), "out-of-range"),
    (re.compile("(datetime|date|time|timezone|uuid|url|bytes)_.*"), "wrong-form"),
    (re.compile(".*_type|.*_parsing|int_from_float"), "wrong-type"),
)
IN_JSON: Final = (
    (re.compile("^Value error, "), ""),
    (re.compile("^Tuple should"), "List should"),
    (re.compile("valid tuple$"), "valid list"),
    (re.compile("a valid dictionary( or instance of .*)?$"), "an object"),
    (re.compile("Extra inputs are not permitted"), "expected a declared name, got another"),
)
NAME: Final = re.compile(r"[A-Za-z][A-Za-z_.\[\]]{0,39}[0-9]?")
"""What a name that nobody has declared may look like to be told; an id could be anything else."""
UNNAMED: Final = "(another name)"


def name_undeclared(name: str) -> str:
    """The name of something undeclared, which is the caller's own text, or a stand-in where it reads like no name."""
    return name if NAME.fullmatch(name) else UNNAMED


def list_faults(errors: Iterable[Mapping[str, Any]], body: Any) -> tuple[Fault, ...]:
    """One fault for each place. body: what came as one, in which the parts of a place are looked up."""
    at_place: dict[Where, list[Mapping[str, Any]]] = {}
    for error in errors:
        at_place.setdefault(_find_place(error, body), []).append(error)
    return tuple(
        _join(place, found) for place, found in at_place.items() if not _is_consequence(place, found, at_place)
    )


def _is_consequence(place: Where, found: Sequence[Mapping[str, Any]], others: Iterable[Where]) -> bool:
    """Is a list too short only because its wrong members were left out?"""
    short = all(error["type"] == "too_short" for error in found)
    return short and any(len(other) > len(place) and other[: len(place)] == place for other in others)


def _find_place(error: Mapping[str, Any], body: Any) -> Where:
    """Where in the message: without the names that validation gives to the members of a union."""
    where: Where = tuple(error["loc"])
    if error["type"] == "json_invalid":
        return where[:1]
    if where[:1] != ("body",) or not isinstance(body, Mapping | list | tuple):
        return where
    place: list[int | str] = [where[0]]
    value: Any = body
    for at, part in enumerate(where[1:], 2):
        inside = part in value if isinstance(value, Mapping) else _is_member(part, value)
        if inside:
            value = value[part]
        if inside or (error["type"] == "missing" and at == len(where)):
            place.append(part)
    return tuple(place)


def _is_member(part: int | str, value: Any) -> bool:
    return isinstance(value, list | tuple) and isinstance(part, int) and part < len(value)


def _join(place: Where, found: Sequence[Mapping[str, Any]]) -> Fault:
    """One fault of what each member of a union says of a place: of a member whose type it has, that member's."""
    told = [error for error in found if _code(error) != "wrong-type"] or found
    first = told[0]
    kinds = list(dict.fromkeys(TYPES[kind] for error in told if (kind := error["type"].split("_")[0]) in TYPES))
    detail = f"Input should be {' or '.join(kinds)}" if len(told) > 1 and kinds else _as_json(str(first["msg"]))
    # A name in a message may itself be something that came.
    return Fault(
        _code(first), ".".join(str(part) if isinstance(part, int) else name_undeclared(part) for part in place), detail
    )


def _as_json(words: str) -> str:
    """Words of Python in those of JSON."""
    for form, instead in IN_JSON:
        words = form.sub(instead, words)
    return words


def _code(error: Mapping[str, Any]) -> FaultCode:
    kind: str = error["type"]
    if kind in KINDS:
        return KINDS[kind]
    return next((code for form, code in BY_FORM if form.fullmatch(kind)), "wrong-value")
