"""A declaration -> how long messages about it may be: what an honest one takes, and some room.

With room, so that whoever sends nearly the right thing is told what is wrong with it, and not that it is long.
"""

from __future__ import annotations

from pathlib import Path

from shared.method.declaration import Counts, Declaration
from shared.protocol.bodies import LENGTH_BYTES, head_of, require_short_head, scalars_text
from shared.protocol.forms import forms
from shared.protocol.schemas import JoinIn

ROOM_FACTOR = 2
ROOM_BYTES = 16 << 10
UPDATE_ROOM_BYTES = 256 << 10
LONGEST_NAME = "n" * 63
GREATEST, LONGEST_NUMBER = (1 << 40) - 1, -2.2250738585072014e-308


def with_room(length: int) -> int:
    return ROOM_FACTOR * length + ROOM_BYTES


def longest_join(declaration: Declaration) -> int:
    """Of a client that also tells its counts."""
    counts = Counts(users=GREATEST, items=GREATEST, edges=GREATEST)
    return with_room(len(JoinIn(client=LONGEST_NAME, declaration=declaration, counts=counts).model_dump_json()))


def longest_update(declaration: Declaration) -> int:
    """Of parameters as they are sent, declared or masked."""
    pieces = forms(declaration)
    return ROOM_FACTOR * sum(form.bytes for form in pieces.values()) + longest_head(declaration) + UPDATE_ROOM_BYTES


def longest_head(declaration: Declaration) -> int:
    """Of a safetensors body of these parameters: names, types, shapes, places, and the scalars."""
    entries = {name: (form.dtype, form.shape) for name, form in forms(declaration).items()}
    scalars = scalars_text(dict.fromkeys(declaration.scalars, LONGEST_NUMBER))
    return with_room(len(head_of(entries, {"scalars": scalars})))


def require_head(declaration: Declaration, path: str | Path) -> None:
    """ProtocolError for a stored body whose head is longer than one of these parameters can be."""
    with open(path, "rb") as file:
        require_short_head(file.read(LENGTH_BYTES), longest_head(declaration))
