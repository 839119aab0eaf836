"""What somebody who can write a silo's state directory, and has not its key, does to the files there."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from client_service.settings import ClientSettings
from shared.errors import DataError
from tests.support.federation import Federation

if TYPE_CHECKING:
    from conftest import Opened

Entry = dict[str, Any]
Change = Callable[[Path], None]


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines(keepends=True)


def cut(name: str, keep: int) -> Change:
    """Lines beyond the first `keep`, or for a negative number the last ones, are gone."""

    def change(state: Path) -> None:
        path = state / name
        path.write_text("".join(lines_of(path)[:keep]))

    return change


def chain(entries: Iterable[Entry]) -> str:
    """These entries as a ledger that agrees with itself: numbered, and every hash anew."""
    text, previous = "", "0" * 64
    for number, entry in enumerate(entries, start=1):
        content = {name: value for name, value in entry.items() if name != "hash"}
        content |= {"sequence": number, "previous": previous}
        form = json.dumps(content, sort_keys=True, separators=(",", ":"))
        previous = hashlib.sha256(form.encode()).hexdigest()
        text += json.dumps({**content, "hash": previous}, separators=(",", ":")) + "\n"
    return text


def write_anew(name: str, keep: Callable[[Entry], bool], *, marked: bool = True) -> Change:
    """A whole new chain of the entries to be kept, with or without what marks a ledger that has a head."""

    def change(state: Path) -> None:
        path = state / name
        entries = [entry for entry in map(json.loads, lines_of(path)) if keep(entry)]
        path.write_text(chain({k: v for k, v in one.items() if marked or k != "mac"} for one in entries))

    return change


def remove(*names: str) -> Change:
    def change(state: Path) -> None:
        for name in names:
            (state / name).unlink(missing_ok=True)

    return change


def both(*changes: Change) -> Change:
    def change(state: Path) -> None:
        for one in changes:
            one(state)

    return change


def damaged(settings: ClientSettings, name: str, change: Change) -> ClientSettings:
    """The same client on a copy of its state to which this was done. Other silos' states lie beside it as before."""
    copy = settings.state_directory.with_name(f"{settings.name}, {name}")
    shutil.copytree(settings.state_directory, copy)
    change(copy)
    return settings.model_copy(update={"state_directory": copy})


def contents(folder: Path) -> dict[str, bytes]:
    """Every file but the lock."""
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock"}


async def require_refusals(running: Federation, opened: Opened, damages: Mapping[str, tuple[Change, str]]) -> None:
    """After a run, its first client starts beside none of these damages, and leaves its files as they are."""
    for damage, (change, says) in damages.items():
        copy = damaged(running.clients[0], damage, change)
        before = contents(copy.state_directory)
        found = await refusal(opened, copy, running.line())
        assert says in found, f"{damage}: {found}"
        assert contents(copy.state_directory) == before, f"{damage}: what was found must stay as it is"
    assert await refusal(opened, damaged(running.clients[0], "nothing", both()), running.line()) == ""


async def refusal(opened: Opened, settings: ClientSettings, outside: httpx.AsyncBaseTransport) -> str:
    """Why a client did not start; nothing where it did."""
    try:
        async with opened(settings, outside):
            return ""
    except DataError as error:
        return str(error)
