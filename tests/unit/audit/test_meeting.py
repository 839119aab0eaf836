"""Parts meet in a folder: each finds the others there, and whoever stays away is named."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from audit import cli
from audit.cli import RoleName
from audit.probes import meeting
from audit.probes.meeting import SystemPart, leave_meeting, meet_parts, parse_peer, part_behind, wait_for_others
from shared.errors import DataError, SettingsError, UnavailableError
from tests.support.questions import LONGEST_SECONDS

pytestmark = pytest.mark.anyio
NAMES = ("aggregator", "client-1", "gateway-1")


def part(name: str) -> SystemPart:
    role = name.partition("-")[0]
    return SystemPart.model_validate({"name": name, "role": role, "port": 8800, "addresses": ("10.0.0.1",)})


async def test_each_part_learns_of_the_others(tmp_path: Path) -> None:
    folder = tmp_path / "meeting"
    found = await asyncio.gather(*(meet_parts(folder, part(name), NAMES, 10.0) for name in NAMES))
    for own, others in zip(NAMES, found, strict=True):
        assert others == {name: part(name) for name in NAMES if name != own}


async def test_whoever_stays_away_is_named(tmp_path: Path) -> None:
    await meet_parts(tmp_path, part("client-1"), ["client-1"], 0.0)
    with pytest.raises(UnavailableError, match=r"0\.05 s after the last one came without aggregator, gateway-1$"):
        await meet_parts(tmp_path, part("client-1"), NAMES, 0.05)


async def test_the_aggregator_waits_until_the_clients_have_left(tmp_path: Path) -> None:
    waiting = asyncio.create_task(wait_for_others(tmp_path, map(part, ("client-1", "client-2", "gateway-1")), 60.0))
    for name in ("gateway-1", "client-1"):
        leave_meeting(tmp_path, part(name))
        assert (await asyncio.wait([waiting], timeout=0.25))[0] == set()
    leave_meeting(tmp_path, part("client-2"))
    await asyncio.wait_for(waiting, LONGEST_SECONDS)


async def test_each_that_comes_gives_the_others_their_time_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine: one part a minute, and a patience of a minute and a half."""
    came = [tmp_path / f"{name}.json" for name in NAMES]
    now = iter(60.0 * look for look in range(9))

    async def pause(seconds: float) -> None:
        del seconds
        came.pop().touch()

    monkeypatch.setattr(meeting, "time", SimpleNamespace(monotonic=lambda: next(now)))
    monkeypatch.setattr(meeting, "asyncio", SimpleNamespace(sleep=pause))
    assert await meeting._wait_for_files(list(came), 90.0) == []


async def test_nobody_is_waited_for_without_end(tmp_path: Path) -> None:
    await asyncio.wait_for(wait_for_others(tmp_path, [part("client-1")], 0.05), LONGEST_SECONDS)


async def test_a_note_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "aggregator.json").write_text('{"name": "aggregator"}')
    with pytest.raises(DataError, match=r"aggregator\.json: expected the name"):
        await meet_parts(tmp_path, part("client-1"), ["aggregator"], 1.0)


async def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match=r"file: expected a writable folder"):
        await meet_parts(tmp_path / "file", part("client-1"), NAMES, 0.0)


def test_peers_may_be_named_on_the_command_line() -> None:
    assert parse_peer("client-2=client@10.0.0.3:8801").addresses == ("10.0.0.3",)
    assert parse_peer("client-2=client@[fd00::3]:8801").addresses == ("fd00::3",)
    assert [parse_peer(f"{name}=gateway@gate:80").behind for name in ("gateway-2", "gateway")] == [
        "client-2",
        "aggregator",
    ]
    for wrong in ("client-2", "client-2=silo@h:1", "Client=client@h:1", "a=client@h:99999", "a=client@:1"):
        with pytest.raises(SettingsError, match="--peer: expected NAME=ROLE@HOST:PORT"):
            parse_peer(wrong)
    assert part_behind("gateway-acme") == "client-acme"


def test_flags_say_what_was_expected() -> None:
    assert cli.split_names("a, b,") == ("a", "b")
    assert cli.parse_outside("[fd00::1]:443", 53, "example.com").host == "fd00::1"
    assert cli.parse_urls(["a=http://h:1", "b=https://h/"]) == {"a": "http://h:1", "b": "https://h"}
    assert cli.parse_files("--operator-key", ["a=/k=1", "b=k"]) == {"a": Path("/k=1"), "b": Path("k")}
    assert cli.own_part("gateway-2", RoleName.gateway, None, None).behind == "client-2"
    assert cli.own_part("door", RoleName.gateway, 80, "client-2").behind == "client-2"
    assert cli.likely_ports(part(name) for name in NAMES) == (8800,)
    for call, word in (
        (lambda: cli.split_names(" , "), "--expect"),
        (lambda: cli.parse_outside("1.1.1.1", 53, "x"), "--outside"),
        (lambda: cli.parse_outside("1.1.1.1:0", 53, "x"), "--outside"),
        (lambda: cli.parse_urls(["a=http://h", "a=http://h"]), "--client"),
        (lambda: cli.parse_files("--operator-key", ["a"]), "--operator-key"),
        (lambda: cli.parse_files("--operator-key", ["=k"]), "--operator-key"),
        (lambda: cli.parse_files("--operator-key", ["a=k", "a=l"]), "--operator-key"),
        (lambda: cli.parse_urls(["a=ftp://h"]), "--client"),
        (lambda: cli.parse_urls([]), "--client"),
        (lambda: cli.own_part("No Name", RoleName.client, None, None), "--name"),
        (lambda: cli.own_part("a", RoleName.client, 0, None), "--port"),
    ):
        with pytest.raises(SettingsError, match=word):
            call()
