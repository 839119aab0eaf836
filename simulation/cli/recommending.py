"""`lpsfed recommend`: ask a silo for lists, of one user on the terminal, or of all users into a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from audit.terminal import as_one_line
from client_service.shard import read_shard
from lpsfed import ListOptions, Recommendations
from shared.errors import DataError, SettingsError
from simulation.cli import options
from simulation.console import ERR, OUT, answer_table, count_bar
from simulation.lists_file import SINKS, require_format, save_lists
from simulation.silo_address import SiloAddress, read_silo_address
from simulation.silo_calls import open_silo

Users = Annotated[list[str] | None, typer.Argument(help="ids of users")]
SETTINGS = Path("silo.toml")


def recommend(
    users: Users = None,
    silo: Annotated[
        Path | None, typer.Option(help="a silo's settings, for its address, key and shard; by default ./silo.toml")
    ] = None,
    client_url: Annotated[str | None, typer.Option(help="of the client; by default by the silo's settings")] = None,
    application_key_file: Annotated[Path | None, typer.Option(help="by default by the silo's settings")] = None,
    ca: options.Authority = None,
    everyone: Annotated[bool, typer.Option("--all", help="all users of the silo's shard")] = False,
    shard: Annotated[Path | None, typer.Option(help="for --all; by default by the silo's settings")] = None,
    users_file: Annotated[Path | None, typer.Option("--users", help="ids of users, one a line")] = None,
    k: Annotated[int, typer.Option(min=1, max=1000, help="length of each list")] = 20,
    filter: Annotated[list[str] | None, typer.Option(help="KEY:VALUE, as in category:shoes; repeatable")] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="say which of the user's items count most; not in a file")
    ] = False,
    out: Annotated[Path | None, typer.Option(help=f"a file for the lists: {', '.join(SINKS)}")] = None,
    as_json: options.AsJson = False,
) -> None:
    """Ask a silo for recommendations: for some users, or for very many into a file."""
    wanted = ListOptions(k=k, filter=filter or [])
    if out is not None:
        require_format(out)
        if explain:
            raise SettingsError("--explain: expected lists on the terminal, got --out")
    elif explain:
        wanted["explain"] = True
    given = read_silo_address(silo or (SETTINGS if SETTINGS.is_file() else None))
    place = given.change(client_url, application_key_file, shard)
    asked = _choose_users(users, users_file, place, everyone=everyone)
    with open_silo(place.url, place.read_key(), ca) as client:
        lists = client.recommend_users(asked, **wanted)
        if out is not None:
            _save(lists, len(asked), out, as_json=as_json)
        else:
            _show(lists, as_json=as_json)


def _choose_users(
    users: Sequence[str] | None, file: Path | None, place: SiloAddress, *, everyone: bool
) -> Sequence[str]:
    if (bool(users), file is not None, everyone).count(True) != 1:
        raise SettingsError("expected one of: ids of users, --users FILE, --all")
    if everyone:
        return read_shard(place.require_shard()).user_ids
    return users or _read_users(file)


def _read_users(file: Path | None) -> list[str]:
    assert file is not None
    try:
        found = [line for line in file.read_text(encoding="utf-8").splitlines() if line]
    except UnicodeDecodeError:
        raise DataError(f"{file}: expected ids of users in UTF-8, one a line") from None
    if not found:
        raise DataError(f"{file}: expected ids of users, one a line, got none")
    return found


def _save(lists: Iterable[Recommendations], total: int, out: Path, *, as_json: bool) -> None:
    with count_bar("users", total, shown=not as_json) as advance:

        def observe() -> Iterator[Recommendations]:
            for one in lists:
                yield one
                advance("")

        count = save_lists(observe(), out)
    if as_json:
        return options.print_json({"file": str(out), "users": count})
    ERR.print(f"{out}: lists of {count:,} users", soft_wrap=True)


def _show(lists: Iterable[Recommendations], *, as_json: bool) -> None:
    if as_json:
        return options.print_json([asdict(one) for one in lists])
    for one in lists:
        OUT.print(answer_table(f"For {one.user}", asdict(one)))
        if one.fallback is not None:
            OUT.print(f"popular items: {one.fallback}")
        for item in one.items:
            reasons = ", ".join(as_one_line(reason.title or reason.item) for reason in item.because)
            if reasons:
                OUT.print(f"{as_one_line(item.title or item.item)}: because of {reasons}", soft_wrap=True)
