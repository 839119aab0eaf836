"""Whose a key is, without a look at every file: what the index says counts only where a file says the same."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from shared.errors import ConflictError, FederationError, SettingsError, UnavailableError
from shared.protocol.signing import enrolment
from shared.protocol.signing import enrolment as key_index
from shared.protocol.signing.enrolment import FOLDER, register_key, registered_keys, remove_key
from shared.protocol.signing.invitation import Invitation, prove_enrolment
from shared.protocol.signing.keys import PublicKey, fingerprint, new_key, public_pem, raw_hex
from shared.protocol.signing.silo_registry import folder_registry


def key() -> PublicKey:
    return new_key().public_key()


def fill(folder: Path, count: int) -> None:
    for number in range(count):
        register_key(f"silo-{number}", key(), folder)


def place_by_hand(folder: Path, name: str, own: PublicKey) -> None:
    """As an operator copies a file; the folder's time moves on by the clock's next tick."""
    (folder / f"{name}.pub").write_bytes(public_pem(own))
    later = time.time_ns() + 1_000_000
    os.utime(folder, ns=(later, later))


def names(folder: Path) -> list[str]:
    return list(registered_keys(folder))


def count_reads(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> int:
    read, reads = enrolment.read_public, []

    def count(path: Path) -> PublicKey:
        reads.append(path)
        return read(path)

    with monkeypatch.context() as patch:
        patch.setattr(enrolment, "read_public", count)
        act()
    return len(reads)


def enrol_by_invitation(folder: Path) -> None:
    code, expires = folder_registry(folder).open_invitation("west", 1.0)
    here = {"url": "http://127.0.0.1:1", "aggregator": raw_hex(key()), "format": "lpsfed-invitation/1"}
    invitation = Invitation.model_validate({"name": "west", "code": code, "expires": expires, **here})
    folder_registry(folder).redeem_invitation(
        prove_enrolment(invitation, new_key()), datetime.now(UTC), invitation.aggregator
    )


def test_a_registration_reads_no_more_files_of_many_than_of_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder_registry(tmp_path).open_invitation("first", 1.0)
    fill(tmp_path, 40)
    assert count_reads(monkeypatch, lambda: register_key("north", key(), tmp_path)) <= 1
    assert count_reads(monkeypatch, lambda: enrol_by_invitation(tmp_path)) <= 2
    held = key()
    register_key("south", held, tmp_path)
    assert count_reads(monkeypatch, lambda: register_key("south", held, tmp_path)) <= 1

    def refused() -> None:
        with pytest.raises(ConflictError, match="'south' has this one"):
            register_key("east", held, tmp_path)

    assert count_reads(monkeypatch, refused) <= 1


def test_a_key_that_was_put_there_by_hand_is_found(tmp_path: Path) -> None:
    fill(tmp_path, 2)
    held = key()
    place_by_hand(tmp_path, "north", held)
    with pytest.raises(ConflictError, match="'north' has this one"):
        register_key("south", held, tmp_path)
    assert "south" not in names(tmp_path)


def test_a_folder_that_was_filled_before_there_was_an_index(tmp_path: Path) -> None:
    held = key()
    place_by_hand(tmp_path, "north", held)
    with pytest.raises(ConflictError, match="'north' has this one"):
        register_key("south", held, tmp_path)


def test_a_key_whose_name_was_removed_is_free(tmp_path: Path) -> None:
    held = key()
    register_key("north", held, tmp_path)
    remove_key("north", tmp_path)
    register_key("south", held, tmp_path)
    assert names(tmp_path) == ["south"]


def test_a_key_whose_file_was_overwritten_by_hand_is_free(tmp_path: Path) -> None:
    held = key()
    register_key("north", held, tmp_path)
    (tmp_path / "north.pub").write_bytes(public_pem(key()))
    register_key("south", held, tmp_path)
    assert names(tmp_path) == ["north", "south"]


def test_killed_before_the_key_s_file_is_there_nobody_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = key()

    def die(*_: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(enrolment, "write_new", die)
        register_key("north", held, tmp_path)
    assert names(tmp_path) == []
    register_key("south", held, tmp_path)
    assert names(tmp_path) == ["south"]


def test_killed_before_the_index_is_written_the_key_is_still_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = key()
    fill(tmp_path, 1)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(key_index.KeyIndex, "note", die)
        register_key("north", held, tmp_path)
    with pytest.raises(ConflictError, match="'north' has this one"):
        register_key("south", held, tmp_path)


@pytest.mark.parametrize("content", [b"", b"\xff", b"nobody", b"../north"])
def test_a_damaged_index_takes_nothing_away(tmp_path: Path, content: bytes) -> None:
    held = key()
    register_key("north", held, tmp_path)
    for path in (tmp_path / FOLDER).iterdir():
        path.write_bytes(content)
    with pytest.raises(ConflictError, match="'north' has this one"):
        register_key("south", held, tmp_path)


def outcome(act: Callable[[], object]) -> bool:
    try:
        act()
    except FederationError:
        return False
    return True


def test_of_many_names_that_want_one_key_at_once_one_gets_it(tmp_path: Path) -> None:
    held = key()
    with ThreadPoolExecutor(16) as pool:
        acts = [lambda number=number: register_key(f"silo-{number}", held, tmp_path) for number in range(16)]
        done = list(pool.map(outcome, acts))
    assert sum(done) == 1 and names(tmp_path) == [f"silo-{done.index(True)}"]


def test_of_many_keys_that_want_one_name_at_once_one_gets_it(tmp_path: Path) -> None:
    keys = [key() for _ in range(16)]
    with ThreadPoolExecutor(16) as pool:
        done = list(pool.map(outcome, [lambda own=own: register_key("north", own, tmp_path) for own in keys]))
    [found] = registered_keys(tmp_path).values()
    assert sum(done) == 1 and found is not None
    assert fingerprint(found) == fingerprint(keys[done.index(True)])


def test_many_at_once_are_all_registered(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(outcome, [lambda n=n: register_key(f"silo-{n:02}", key(), tmp_path) for n in range(32)]))
    assert names(tmp_path) == [f"silo-{number:02}" for number in range(32)]


def test_who_holds_the_index_for_ever_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_index, "LOCK_SECONDS", 0.05)
    with (
        key_index.lock_index(tmp_path, dict),
        pytest.raises(UnavailableError, match="another registration in progress"),
    ):
        register_key("north", key(), tmp_path)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("")
    with pytest.raises(SettingsError, match="keys: expected a writable path"):
        register_key("north", key(), tmp_path / "keys")
