"""Normal spelling of ids, and which ids are usable.

Files, lists and the services' API share this rule. An id is text. Blanks and byte order marks around it do not count,
letters are composed (Unicode NFC), and a whole number that a data frame wrote as a float ("17.0") is that number
("17"). All else stays: "017" is not "17".
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from typing import Final

LONGEST_ID: Final = 512  # characters
UNPRINTED: Final = r"[\x00-\x1f\x7f]"
MISSING: Final = ("NaN", "nan")  # written by a data frame for a missing id
BLANKS: Final = (
    " \t\r\n\v\f\x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000\ufeff"
)
WHOLE_FLOAT: Final = r"^(?:-(0)|(-?[0-9]+))\.0$"

TOO_LONG: Final = f"an id of at most {LONGEST_ID} characters, got a longer one"
WITH_CONTROLS: Final = "an id without control characters, got one with some"
NO_ID: Final = "an id, got NaN, which a data frame writes for a missing id"
NOTHING: Final = "an id, got blanks alone"

_unprinted = re.compile(UNPRINTED)
_whole_float = re.compile(WHOLE_FLOAT)


def normalise_id(text: str) -> str:
    """Normalises an id as `normalise_ids` does; blanks alone become ""."""
    text = text.strip(BLANKS)
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    return _whole_float.sub(r"\1\2", text) if text.endswith(".0") else text


def find_row(rows: Mapping[str, int], text: str) -> int | None:
    """Finds an id in `index_ids`, in any spelling; None for an unknown one."""
    row = rows.get(text)
    return rows.get(normalise_id(text)) if row is None else row


def require_usable_id(text: str) -> str:
    """Returns the normalised id; raises ValueError for an unusable one.

    Unusable ids are those of `find_unusable_ids`. The id is not quoted.
    """
    text = normalise_id(text)
    kinds = (
        (not text, NOTHING),
        (len(text) > LONGEST_ID, TOO_LONG),
        (has_control_characters(text), WITH_CONTROLS),
        (text in MISSING, NO_ID),
    )
    for wrong, expected in kinds:
        if wrong:
            raise ValueError(f"expected {expected}")
    return text


def has_control_characters(text: str) -> bool:
    """Tells whether text has a control character."""
    return _unprinted.search(text) is not None
