"""Expected mounts, devices and contents of a part's container, by role and deployment."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import reduce
from pathlib import Path

from pydantic import Field, ValidationError

from audit.evidence.evidence import Role
from shared.errors import SettingsError
from shared.message import Message

FOLDER = Path(__file__).parents[1] / "expected"
PRIVATE_KEY = "private key"


class ExpectedMounts(Message):
    """Expected mounts, and patterns of places where each kind of content may lie.

    Some mounts are read, others are written. `own`: files that may hold anything but a private key. `devices`:
    devices of special hardware. `sockets`: sockets of special hardware, and those between a part's own processes.
    """

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    sockets: tuple[str, ...] = ()
    contents: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)

    def may_lie(self, kind: str, place: str) -> bool:
        """Tells whether content of this kind may lie there.

        A private key only where one is expected.
        """
        own = () if kind == PRIVATE_KEY else self.own
        return is_among(place, (*own, *self.contents.get(kind, ())))


def is_among(place: str, patterns: Iterable[str]) -> bool:
    """Tells whether a place matches a pattern, as in fnmatch, case-sensitively."""
    return any(fnmatchcase(place, pattern) for pattern in patterns)


def read_expected(role: Role, deployments: str, name: str) -> ExpectedMounts:
    """Reads the expectations of a part in deployments such as `compose` or `compose,gpu`.

    Raises SettingsError for an unknown deployment.
    """
    path = FOLDER / f"{role}.toml"
    sections = tomllib.loads(path.read_text(encoding="utf-8"))
    wanted = deployments.split(",")
    if unknown := [section for section in wanted if section not in sections]:
        raise SettingsError(f"{path.name}: expected one of {', '.join(sections)}, got {unknown[0]!r}")
    try:
        return _fill_in_name(
            reduce(_merge_expected, (ExpectedMounts.model_validate(sections[section]) for section in wanted)), name
        )
    except ValidationError as error:
        raise SettingsError(f"{path.name}: expected lists of places, got others ({error.error_count()})") from None


def _merge_expected(first: ExpectedMounts, second: ExpectedMounts) -> ExpectedMounts:
    lists = {
        key: (*getattr(first, key), *getattr(second, key)) for key in ("read", "write", "own", "devices", "sockets")
    }
    return first.model_copy(update={**lists, "contents": {**first.contents, **second.contents}})


def _fill_in_name(expected: ExpectedMounts, name: str) -> ExpectedMounts:
    contents = {kind: _fill_in_places(places, name) for kind, places in expected.contents.items()}
    return expected.model_copy(update={"own": _fill_in_places(expected.own, name), "contents": contents})


def _fill_in_places(places: Iterable[str], name: str) -> tuple[str, ...]:
    return tuple(place.replace("{name}", name) for place in places)
