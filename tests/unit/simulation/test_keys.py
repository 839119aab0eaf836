"""`lpsfed keys`: a pair, its registration, who is registered, and its end; as words and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from shared.errors import ConflictError, NotFoundError, SettingsError
from shared.protocol.signing.keys import fingerprint, read_private
from simulation.cli import app


def keys(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["keys", *map(str, arguments)])


def said(*arguments: str | Path) -> Any:
    done = keys(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_client_is_enrolled_and_removed(tmp_path: Path) -> None:
    out, registry = tmp_path / "out", tmp_path / "keys"
    made = said("new", "east", "--out", out)
    mark = fingerprint(read_private(out / "east.key").public_key())
    assert made == {
        "name": "east",
        "private": str(out / "east.key"),
        "public": str(out / "east.pub"),
        "fingerprint": mark,
    }
    assert said("list", "--keys", registry) == []
    assert f"got no folder {registry}" in keys("list", "--keys", registry).stderr.replace("\n", "")
    for _ in range(2):
        assert said("register", out / "east.pub", "--keys", registry) == {"name": "east", "fingerprint": mark}
    (registry / "west.pub").write_text("not a key")
    expected = [{"name": "east", "fingerprint": mark}, {"name": "west", "fingerprint": None}]
    assert said("list", "--keys", registry) == expected
    assert said("remove", "west", "--keys", registry) == {"name": "west"}
    assert said("remove", "east", "--keys", registry) == {"name": "east"}
    assert not list(registry.glob("*.pub"))


def test_it_says_the_same_in_words_and_never_shows_a_private_key(tmp_path: Path) -> None:
    registry = tmp_path / "keys"
    made = keys("new", "east", "--out", tmp_path)
    secret, mark = (tmp_path / "east.key").read_text().splitlines()[1], said("list", "--keys", registry)
    assert mark == [] and secret not in made.output and "it stays with the client" in made.output
    registered = keys("register", tmp_path / "east.pub", "--keys", registry)
    (known,) = said("list", "--keys", registry)
    assert registered.output == f"east: registered, fingerprint {known['fingerprint']}\n"
    (registry / "west.pub").write_text("not a key")
    shown = keys("list", "--keys", registry).output
    assert "east" in shown and "not an Ed25519" in shown
    assert keys("remove", "east", "--keys", registry).output == "east: removed\n"


def test_nothing_is_overwritten_and_what_is_wrong_is_named(tmp_path: Path) -> None:
    registry = tmp_path / "keys"
    for folder in ("one", "two"):
        assert keys("new", "east", "--out", tmp_path / folder).exit_code == 0
    before = (tmp_path / "one" / "east.key").read_bytes()
    assert keys("register", tmp_path / "one" / "east.pub", "--keys", registry).exit_code == 0
    wrong: list[tuple[Result, type[Exception], str]] = [
        (keys("new", "east", "--out", tmp_path / "one"), ConflictError, "expected no file there"),
        (keys("register", tmp_path / "two" / "east.pub", "--keys", registry), ConflictError, "remove it first"),
        (keys("register", tmp_path / "one" / "east.key", "--keys", registry), SettingsError, "a client's name"),
        (keys("register", tmp_path / "none.pub", "--keys", registry), SettingsError, "none.pub: expected a file"),
        (keys("new", "Not A Name", "--out", tmp_path), SettingsError, "a client's name"),
        (keys("list"), SettingsError, "expected --keys or --operator-token-file, got neither"),
        (keys("list", "--keys", registry, "--operator-token-file", "t"), SettingsError, "got both: give one"),
        (keys("remove", "west", "--keys", registry), NotFoundError, "expected a registered name"),
    ]
    for done, kind, words in wrong:
        assert done.exit_code == 1 and isinstance(done.exception, kind) and words in str(done.exception)
    assert (tmp_path / "one" / "east.key").read_bytes() == before


@pytest.mark.parametrize("command", ["new", "register", "list", "remove"])
def test_every_command_says_what_it_does(command: str) -> None:
    assert keys(command, "--help").exit_code == 0
