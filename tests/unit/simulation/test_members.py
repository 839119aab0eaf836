"""`lpsfed members`: the file that silos pin, its fingerprint, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from shared.errors import ConflictError, FederationError, SettingsError
from shared.protocol.signing.enrolment import make_key_pair
from shared.protocol.signing.keys import fingerprint, raw_hex, read_public
from shared.protocol.signing.members import read_registry
from simulation.cli import app


def members(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["members", *map(str, arguments)])


def said(*arguments: str | Path) -> Any:
    done = members(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A folder of two clients' keys, and beside it the aggregator's."""
    for name in ("east", "west"):
        make_key_pair(name, tmp_path / "keys")
    make_key_pair("aggregator", tmp_path)
    return tmp_path / "keys"


def write(keys: Path, file: str = "members.toml", *more: str) -> tuple[str | Path, ...]:
    place = keys.parent
    return ("write", place / file, "--keys", keys, "--aggregator", place / "aggregator.pub", *more)


def test_the_same_keys_make_the_same_file_with_the_same_fingerprint(keys: Path) -> None:
    made, again = said(*write(keys)), said(*write(keys, "again.toml"))
    assert made == again == said("show", keys.parent / "members.toml")
    marks = {name: fingerprint(read_public(keys / f"{name}.pub")) for name in ("east", "west")}
    assert made["clients"] == marks and made["aggregator"] == fingerprint(read_public(keys.parent / "aggregator.pub"))
    shown = members("show", keys.parent / "members.toml").stdout
    assert made["fingerprint"] in shown and "east" in shown and "west" in shown


def test_a_file_that_is_there_stays_unless_it_is_to_be_replaced(keys: Path) -> None:
    before = said(*write(keys))
    make_key_pair("north", keys)
    with pytest.raises(ConflictError, match="nothing was changed"):
        CliRunner().invoke(app, ["members", *map(str, write(keys))], catch_exceptions=False)
    assert said("show", keys.parent / "members.toml") == before
    assert set(said(*write(keys, "members.toml", "--replace"))["clients"]) == {"east", "north", "west"}


KEY, OTHER = "ab" * 32, "cd" * 32


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "a file that `lpsfed members write` has made"),
        ("[clients]\n", "a file that `lpsfed members write` has made"),
        (f'aggregator = "{KEY}"\nmore = 1\n[clients]\n', "fields other than"),
        (f'aggregator = "{KEY}"\n[clients]\n"../east" = "{OTHER}"\n', "fields other than"),
        ('aggregator = "xy"\n[clients]\n', "public keys in hexadecimal"),
        ('aggregator = "abcd"\n[clients]\n', "the 32 bytes of an Ed25519 public key, got 2"),
        (f'aggregator = "{KEY}"\n[clients]\neast = "{OTHER}"\nwest = "{OTHER}"\n', "got one key twice"),
        (f'aggregator = "{KEY}"\n[clients]\neast = "{KEY}"\n', "got one key twice"),
        ("\x00\xff", "got "),
    ],
)
def test_what_is_no_file_of_members_is_refused_with_its_path(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "members.toml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(SettingsError, match=words) as caught:
        read_registry(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_and_a_folder_without_keys_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"members\.toml"):
        read_registry(tmp_path / "members.toml")
    make_key_pair("aggregator", tmp_path)
    (tmp_path / "none").mkdir()
    with pytest.raises(FederationError, match="expected public keys"):
        CliRunner().invoke(app, ["members", *map(str, write(tmp_path / "none"))], catch_exceptions=False)


def test_raw_hex_is_what_the_file_holds(keys: Path) -> None:
    said(*write(keys))
    text = (keys.parent / "members.toml").read_text(encoding="utf-8")
    assert f'east = "{raw_hex(read_public(keys / "east.pub"))}"' in text


def test_a_silo_accepts_whom_its_operator_names(monkeypatch: pytest.MonkeyPatch) -> None:
    key, posted = "ab" * 32, list[Any]()
    waiting = {"client": "eve", "key": key, "fingerprint": "cd" * 32, "agreed": False}

    def answer(request: httpx.Request) -> httpx.Response:
        assert request.headers["Authorization"] == "Bearer shown"
        if request.method == "POST":
            posted.append((request.url.path, json.loads(request.content)))
        return httpx.Response(200, json={"file": False, "members": [], "waiting": [] if posted else [waiting]})

    def open_client(*_: object) -> httpx.Client:
        bearer = {"Authorization": "Bearer shown"}
        return httpx.Client(base_url="http://silo", headers=bearer, transport=httpx.MockTransport(answer))

    monkeypatch.setattr("simulation.cli.members._open_client", open_client)
    refused = members("accept", "bob", "--yes")
    assert refused.exit_code and "eve" in str(refused.exception) and posted == []
    asked = members("accept")  # nobody can be asked here
    assert asked.exit_code and "--yes" in str(asked.exception) and posted == []
    assert said("accept", "--yes")["waiting"] == []
    assert posted == [("/v1/members/accept", {"keys": {"eve": key}})]
