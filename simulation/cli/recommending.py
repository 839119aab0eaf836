"""`lpsfed recommend`: fetches lists from a silo, to the terminal or into a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from audit.terminal import as_one_line
from shared.errors import DataError, SettingsError
from shared.words import count_noun
from simulation.cli import options
from simulation.progress import step
from simulation.reports.terminal import ERR, OUT, answer_table, count_bar

if TYPE_CHECKING:
    from lpsfed import Recommendations
    from simulation.operating.silo_client import SiloAddress

Users = Annotated[list[str] | None, typer.Argument(help="Ids of users")]
SETTINGS = Path("silo.toml")
UNKNOWN = "unknown user"  # what a list of popular items says of its user


def recommend(
    users: Users = None,
    silo: Annotated[
        Path | None, typer.Option(help="The silo's settings, for its address, key and shard (default: ./silo.toml)")
    ] = None,
    client_url: Annotated[str | None, typer.Option(help="URL of the client (default: by the silo's settings)")] = None,
    application_key_file: Annotated[
        Path | None, typer.Option(help="File with the application key (default: by the silo's settings)")
    ] = None,
    ca: options.Authority = None,
    everyone: Annotated[bool, typer.Option("--all", help="All users of the silo's shard")] = False,
    shard: Annotated[Path | None, typer.Option(help="Shard for --all (default: by the silo's settings)")] = None,
    users_file: Annotated[
        Path | None, typer.Option("--users", help="File of users' ids, one per line or in a column user")
    ] = None,
    k: Annotated[int, typer.Option(min=1, max=1000, help="Length of each list")] = 20,
    filter: Annotated[
        list[str] | None, typer.Option(help="Only items with KEY:VALUE, as category:shoes; repeatable")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show the user's items that count most; not with --out")
    ] = False,
    out: Annotated[Path | None, typer.Option(help=f"File for the lists: {', '.join(options.LIST_FILES)}")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Fail for a user whom the silo does not know")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Fetches recommendations from a silo: for some users, or for all into a file."""
    from lpsfed import ListOptions
    from simulation.operating.lists_file import require_format
    from simulation.operating.silo_client import open_silo, read_silo_address

    wanted = ListOptions(k=k, filter=filter or [])
    if out is not None:
        require_format(out)
        if explain:
            raise SettingsError("--explain: expected lists on the terminal, got --out")
    elif explain:
        wanted["explain"] = True
    given = read_silo_address(silo or (SETTINGS if SETTINGS.is_file() else None))
    place = given.change(client_url, application_key_file, shard)
    chosen = _choose_users(users, users_file, place, everyone=everyone)
    with open_silo(place.url, place.read_key(), ca) as client:
        lists = _report_unknown(client.recommend_users(chosen, **wanted), strict=strict)
        if out is not None:
            _save_lists(lists, len(chosen), out, as_json=as_json)
        else:
            with step("asking for the lists") if strict else nullcontext():
                collected = list(lists) if strict else lists
            _print_lists(collected, as_json=as_json)


def _choose_users(
    users: Sequence[str] | None, file: Path | None, place: SiloAddress, *, everyone: bool
) -> Sequence[str]:
    from client_service.data.interaction_files import load_shard

    if (bool(users), file is not None, everyone).count(True) != 1:
        raise SettingsError("expected one of: ids of users, --users FILE, --all")
    if everyone:
        with step("reading the shard"):
            return load_shard(place.require_shard()).user_ids
    return users or _read_users(file)


def _read_users(file: Path | None) -> list[str]:
    from client_service.data.id_columns import read_id_list

    assert file is not None
    return read_id_list(file, "user").to_list()


def _report_unknown(lists: Iterable[Recommendations], *, strict: bool) -> Iterator[Recommendations]:
    """Yields the lists, and at the end reports users that the silo does not know.

    Such users get popular items. Raises DataError for them where `strict`.
    """
    count = unknown = 0
    for one in lists:
        count, unknown = count + 1, unknown + (one.fallback == UNKNOWN)
        yield one
    if unknown:
        missing = f"{unknown:,} of {count_noun(count, 'user')} {'is' if count == 1 else 'are'} not in the shard"
        if strict:
            raise DataError(f"recommend: expected users whom the silo knows, {missing}")
        ERR.print(f"- {missing}: they get popular items", soft_wrap=True)


def _save_lists(lists: Iterable[Recommendations], total: int, out: Path, *, as_json: bool) -> None:
    from simulation.operating.lists_file import save_lists

    with count_bar("users", total, shown=not as_json) as advance:

        def observe() -> Iterator[Recommendations]:
            for one in lists:
                yield one
                advance("")

        count = save_lists(observe(), out)
    if as_json:
        return options.print_json({"file": str(out), "users": count})
    ERR.print(f"{out}: lists of {count:,} users", soft_wrap=True)


def _print_lists(lists: Iterable[Recommendations], *, as_json: bool) -> None:
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
