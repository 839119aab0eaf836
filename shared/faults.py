"""Words for validation errors: what was expected and what came, without data."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

LONGEST: Final = 200  # characters of what was expected, and of a setting that came
UNDECLARED: Final = "expected a declared name, got another"
UNKNOWN_SETTING: Final = "expected the name of a setting, got an unknown one"
NUMBERS: Final = re.compile("(int|float)_.*|(greater|less)_than.*|finite_number|multiple_of")
CHOICES: Final = ("literal_error", "enum")
SHOWN_NUMBER: Final = re.compile(r"[+-]?[0-9.]{1,20}(e[+-]?[0-9]{1,3})?", re.IGNORECASE)
SHOWN_WORD: Final = re.compile("[A-Za-z][A-Za-z_-]{0,19}")

KINDS: Final = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "list": "a list",
    "tuple": "a list",
    "dict": "an object",
    "model": "an object",
    "datetime": "a time, as 2026-03-01T12:00:00Z",
    "timezone": "a time with its zone, as 2026-03-01T12:00:00Z",
}
"""Names of expected values, by the first word of an error's type."""
BOUNDS: Final = {
    "greater_than_equal": "a number of {ge} or more",
    "greater_than": "a number above {gt}",
    "less_than_equal": "a number of at most {le}",
    "less_than": "a number below {lt}",
    "multiple_of": "a multiple of {multiple_of}",
    "finite_number": "a finite number",
    "too_short": "a list of {min_length} or more",
    "too_long": "a list of at most {max_length}",
    "string_too_short": "text of {min_length} or more characters",
    "string_too_long": "text of at most {max_length} characters",
    "bytes_too_short": "{min_length} or more bytes",
    "bytes_too_long": "at most {max_length} bytes",
    "missing": "a value",
    "string_unicode": "text in UTF-8",
}
FORMS: Final = (
    (re.compile(r"\^run-\[0-9\].*"), "the name of a run, as run-1"),
    (re.compile(r"\^\[a-z0-9\]\[a-z0-9_-\]\{0,62\}\$"), "a name of at most 63 of a-z, 0-9, _ and -, as client-1"),
    (re.compile(r"\^\[0-9a-f\]\{(\d+)\}\$"), r"\1 digits of 0-9 and a-f"),
    (re.compile(r"\^https\?://.*"), "a URL without a path, as https://aggregator.example:8800"),
)
"""Words for the patterns of texts; any other pattern is shown itself."""
OWN_WORDS: Final = re.compile("^(Value error|Assertion failed), ")
OWN_TYPES: Final = ("value_error", "assertion_error")
SHOULD: Final = re.compile("should (?:be|have) ([^,]+)")


def describe_fault(
    error: Mapping[str, Any], came: Callable[[Mapping[str, Any]], str] | None = None, undeclared: str = UNDECLARED
) -> str:
    """Describes an error of pydantic as `expected ..., got ...`, in bounded length.

    came: describes what came; by default its kind and length alone.
    """
    kind = error["type"]
    if kind == "extra_forbidden":
        return undeclared
    if kind == "json_invalid":
        return "expected JSON, got text that is none"
    said = OWN_WORDS.sub("", str(error["msg"])) if kind in OWN_TYPES else f"expected {describe_expected(error)}"
    if kind in OWN_TYPES and "got " in said:
        return said
    return f"{said}, got {'none' if kind == 'missing' else (came or describe_kind)(error)}"


def describe_expected(error: Mapping[str, Any]) -> str:
    """Describes what an error of pydantic expected: kind, bound, length, form or choices."""
    kind, context = error["type"], error.get("ctx", {})
    if kind in BOUNDS:
        bounds = {name: _show_bound(value) for name, value in context.items()}
        words = BOUNDS[kind].format(**bounds)
        return words.replace("a list", "an object") if context.get("field_type") == "Dictionary" else words
    if kind in CHOICES:
        return _shorten(str(context["expected"]).replace("'", ""))
    if kind == "string_pattern_mismatch":
        return _describe_form(str(context["pattern"]))
    if named := KINDS.get(kind.partition("_")[0]):
        return named
    said = SHOULD.search(str(error["msg"]))  # other messages may quote what came
    return _shorten(said[1]) if said else "a value of another form"


def describe_safely(error: Mapping[str, Any]) -> str:
    """Describes what came, with a number or word where one was expected.

    Of anything else its kind and length, because it may be an id, a name or a secret.
    """
    value, kind = error.get("input"), error["type"]
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        form = SHOWN_NUMBER if NUMBERS.fullmatch(kind) else SHOWN_WORD if kind in CHOICES else None
        if form is not None and form.fullmatch(text := str(value)):
            return text
    return describe_kind(error)


def describe_setting(error: Mapping[str, Any]) -> str:
    """Describes the value of a setting, no secret and no data, in bounded length."""
    found = describe_safely(error)
    return found if found == str(error["input"]) else _shorten(repr(error["input"]))


def describe_kind(error: Mapping[str, Any]) -> str:
    """Describes kind and length of what came, without its content."""
    value = error.get("input")
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return "a number" if value == value else "nan"
    if isinstance(value, str):
        return f"text of {_count(len(value), 'character')}"
    if isinstance(value, bytes):
        return _count(len(value), "byte")
    if isinstance(value, list | tuple | set | frozenset):
        return f"a list of {len(value):,}"
    return f"an object of {_count(len(value), 'field')}" if isinstance(value, Mapping) else "another value"


def _count(number: int, one: str) -> str:
    return f"{number:,} {one}{'' if number == 1 else 's'}"


def _show_bound(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.15g}" if isinstance(value, float) else str(value)


def _describe_form(pattern: str) -> str:
    for form, words in FORMS:
        if found := form.fullmatch(pattern):
            return found.expand(words) if found.groups() else words
    return _shorten(f"text of the form {pattern}")


def _shorten(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."
