"""The role of a part and how it is deployed -> what its container may have: one file for each role."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from pydantic import Field, ValidationError

from audit.evidence import Role
from shared.errors import SettingsError
from shared.schemas import Message

FOLDER = Path(__file__).parents[1] / "expected"
PRIVATE_KEY = "private key"


class Expected(Message):
    """Mounts that are read and that are written, and where in them which kind of content may lie.

    `own`: files among which anything may be but a private key. `contents`: a kind of content -> patterns of places.
    """

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    contents: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)

    def may_lie(self, kind: str, place: str) -> bool:
        """May a file with content of this kind be there? A private key only where one is expected."""
        own = () if kind == PRIVATE_KEY else self.own
        return any(fnmatchcase(place, pattern) for pattern in (*own, *self.contents.get(kind, ())))


def read_expected(role: Role, deployment: str, name: str) -> Expected:
    """SettingsError where nobody has written down what such a part may have."""
    path = FOLDER / f"{role}.toml"
    found = tomllib.loads(path.read_text(encoding="utf-8"))
    if deployment not in found:
        raise SettingsError(f"{path.name}: expected one of {', '.join(found)}, got {deployment!r}")
    try:
        return _named(Expected.model_validate(found[deployment]), name)
    except ValidationError as error:
        raise SettingsError(f"{path.name}: expected lists of places, got others ({error.error_count()})") from None


def _named(expected: Expected, name: str) -> Expected:
    contents = {kind: _with_name(places, name) for kind, places in expected.contents.items()}
    return expected.model_copy(update={"own": _with_name(expected.own, name), "contents": contents})


def _with_name(places: Iterable[str], name: str) -> tuple[str, ...]:
    return tuple(place.replace("{name}", name) for place in places)
