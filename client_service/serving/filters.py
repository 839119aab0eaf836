"""`genre:Comedy|Drama` -> a key and the values of which an item must have one, in composed characters (NFC)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Final

from shared.errors import Fault, ProtocolError

EXPECTED: Final = r"filter: expected KEY:VALUE or KEY:VALUE|VALUE, with \ before a :, | or \ that belongs to one"
MOST_FILTERS, LONGEST_FILTER, MOST_VALUES = 20, 2000, 100
KEY: Final = re.compile(r"((?:[^:\\]|\\.)+):(.+)", re.DOTALL)
VALUE: Final = re.compile(r"((?:[^|\\]|\\.)+)(\||$)", re.DOTALL)
ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)


def parse_filters(filters: Iterable[str]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Each key with its values. ProtocolError for what has another form; it does not quote what came."""
    return tuple(_parse_filter(one) for one in filters)


def _parse_filter(text: str) -> tuple[str, tuple[str, ...]]:
    parted = KEY.fullmatch(text)
    if parted is None:
        raise _wrong_form(f"{EXPECTED}, got another form")
    values, place, rest = [], 0, parted[2]
    while place < len(rest) or rest.endswith("|"):
        found = VALUE.match(rest, place)
        if found is None:
            raise _wrong_form(f"{EXPECTED}, got a value that is empty or ends in \\")
        values.append(_unescape(found[1]))
        place = found.end()
        if not found[2]:
            break
    if len(values) > MOST_VALUES:
        told = f"filter: expected at most {MOST_VALUES} values of a key, got {len(values)}"
        raise ProtocolError(told, faults=(Fault("out-of-range", "filter", told),))
    return _unescape(parted[1]), tuple(dict.fromkeys(values))


def _wrong_form(told: str) -> ProtocolError:
    return ProtocolError(told, faults=(Fault("wrong-form", "filter", told),))


def _unescape(text: str) -> str:
    return unicodedata.normalize("NFC", ESCAPED.sub(r"\1", text))
