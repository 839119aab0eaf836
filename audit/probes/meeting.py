"""Folder where all parts write their addresses and wait for the others."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import Field, ValidationError

from audit.evidence.evidence import Role
from shared.errors import DataError, SettingsError, UnavailableError
from shared.files import open_replacement
from shared.message import Message
from shared.protocol.schemas import ClientName

PORTS: dict[Role, int] = {"client": 8801, "aggregator": 8800, "gateway": 8800}
PEER = re.compile(r"(?P<name>[^=@]+)=(?P<role>client|aggregator|gateway)@(?P<host>.+):(?P<port>[0-9]{1,5})")
PAUSE_SECONDS = 0.1


class SystemPart(Message):
    """Part of the system and its address.

    behind: of a gateway, the part that it passes calls on to.
    """

    name: ClientName
    role: Role
    port: int = Field(ge=1, le=65535)
    addresses: tuple[str, ...]
    behind: str | None = None


def part_behind(gateway: str) -> str:
    """Returns the part behind a gateway, by their names.

    `gateway` stands before the aggregator, `gateway-2` before `client-2`.
    """
    _, _, rest = gateway.partition("-")
    return f"client-{rest}" if rest else "aggregator"


def parse_peer(text: str) -> SystemPart:
    """Parses NAME=ROLE@HOST:PORT."""
    match = PEER.fullmatch(text)
    try:
        fields = {} if match is None else match.groupdict()
        addresses = (fields.pop("host").strip("[]"),)
        behind = part_behind(fields["name"]) if fields["role"] == "gateway" else None
        return SystemPart.model_validate({**fields, "addresses": addresses, "behind": behind})
    except (KeyError, ValidationError):
        raise SettingsError(f"--peer: expected NAME=ROLE@HOST:PORT, got {text!r}") from None


async def meet_parts(folder: Path, own: SystemPart, expected: Iterable[str], seconds: float) -> dict[str, SystemPart]:
    """Waits for all expected parts, and returns the others.

    Raises UnavailableError naming the missing ones once none has come for `seconds`: on a busy machine they come
    late, one after the other.
    """
    _write_part(folder, own)
    awaited = set(expected) - {own.name}
    if missing := await _wait_for_files([folder / f"{name}.json" for name in sorted(awaited)], seconds):
        names = ", ".join(path.stem for path in missing)
        raise UnavailableError(f"{folder}: expected all parts, {seconds:g} s after the last one came without {names}")
    return {name: _read_part(folder / f"{name}.json") for name in sorted(awaited)}


def leave_meeting(folder: Path, own: SystemPart) -> None:
    """Records that this part has made all its probes."""
    (folder / f"{own.name}.left").touch()


async def wait_for_others(folder: Path, parts: Iterable[SystemPart], seconds: float) -> None:
    """Waits until all clients among `parts` have left, or none for `seconds`.

    The report names what is missing then.
    """
    await _wait_for_files([folder / f"{part.name}.left" for part in parts if part.role == "client"], seconds)


async def _wait_for_files(files: Sequence[Path], seconds: float) -> list[Path]:
    """Waits for files; returns those missing when none has come for `seconds`."""
    there, since = -1, time.monotonic()
    while missing := [path for path in files if not path.exists()]:
        if len(files) - len(missing) != there:
            there, since = len(files) - len(missing), time.monotonic()
        elif time.monotonic() - since > seconds:
            break
        await asyncio.sleep(PAUSE_SECONDS)
    return missing


def _write_part(folder: Path, own: SystemPart) -> None:
    """Writes the part's file in one step, so that no reader sees half of it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open_replacement(folder / f"{own.name}.json") as partial:
            partial.write_text(own.model_dump_json(), encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"{folder}: expected a writable folder ({error.strerror})") from None


def _read_part(path: Path) -> SystemPart:
    try:
        return SystemPart.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        raise DataError(f"{path}: expected the name, role, port and addresses of a part") from None
