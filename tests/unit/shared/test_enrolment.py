"""Key pairs in files, and the folder of those who may call: nothing is replaced, and what is no key is not taken."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from shared.errors import ConflictError, NotFoundError, SettingsError
from shared.protocol.signing.enrolment import (
    enrol_client,
    ensure_key_pair,
    make_key_pair,
    register_key_file,
    registered_keys,
    remove_key,
)
from shared.protocol.signing.keys import fingerprint, read_private, read_public


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_a_pair_is_two_files_of_which_one_is_its_owner_s_alone(tmp_path: Path) -> None:
    pair = make_key_pair("east", tmp_path / "new")
    assert [path.name for path in sorted(pair.private.parent.iterdir())] == ["east.key", "east.pub"]
    assert (mode(pair.private), mode(pair.public)) == (0o600, 0o644)
    assert pair.private.read_text().startswith("-----BEGIN PRIVATE KEY-----\n")
    assert pair.public.read_text().startswith("-----BEGIN PUBLIC KEY-----\n")
    public = read_private(pair.private).public_key()
    assert fingerprint(public) == fingerprint(read_public(pair.public)) and len(fingerprint(public)) == 64
    other = make_key_pair("west", tmp_path / "new")
    assert fingerprint(read_public(other.public)) != fingerprint(public)


def test_a_pair_that_is_there_is_not_replaced(tmp_path: Path) -> None:
    make_key_pair("east", tmp_path)
    before = content(tmp_path)
    with pytest.raises(ConflictError, match=r"east\.key: expected no file there"):
        make_key_pair("east", tmp_path)
    assert content(tmp_path) == before


def test_a_public_half_without_its_private_one_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "east.pub").write_text("of a key that is gone")
    pair = make_key_pair("east", tmp_path)
    assert fingerprint(read_public(pair.public)) == fingerprint(read_private(pair.private).public_key())


def test_a_pair_is_kept_and_its_missing_public_half_made_again(tmp_path: Path) -> None:
    pair = ensure_key_pair("east", tmp_path)
    before = content(tmp_path)
    pair.public.unlink()
    assert ensure_key_pair("east", tmp_path) == pair and content(tmp_path) == before


@pytest.mark.parametrize("name", ["", "East", "../east", "a/b", "east.", "e" * 64, "-east"])
def test_a_name_that_no_client_can_have_is_refused(tmp_path: Path, name: str) -> None:
    for act in (make_key_pair, ensure_key_pair, remove_key):
        with pytest.raises(SettingsError, match="expected a client's name"):
            act(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_whoever_is_registered_is_listed_until_removed(tmp_path: Path) -> None:
    keys, east = tmp_path / "keys", make_key_pair("east", tmp_path)
    assert registered_keys(keys) == {}
    for name in ("west", "north"):
        enrol_client(name, tmp_path / name, keys)
    assert register_key_file(east.public, keys) == "east"
    found = registered_keys(keys)
    assert list(found) == ["east", "north", "west"] and found["east"] is not None
    assert fingerprint(found["east"]) == fingerprint(read_public(east.public))
    assert all(b"PRIVATE" not in one for one in content(keys).values())
    remove_key("east", keys)
    assert list(registered_keys(keys)) == ["north", "west"]
    with pytest.raises(NotFoundError, match="expected a registered name, got 'east'"):
        remove_key("east", keys)


def test_the_same_key_again_changes_nothing_and_another_is_refused(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    pair = enrol_client("east", tmp_path / "one", keys)
    before = content(keys)
    assert enrol_client("east", tmp_path / "one", keys) == pair and register_key_file(pair.public, keys) == "east"
    other = make_key_pair("east", tmp_path / "two")
    with pytest.raises(ConflictError, match="'east' has another one: remove it first"):
        register_key_file(other.public, keys)
    assert content(keys) == before


def test_two_names_cannot_have_one_key(tmp_path: Path) -> None:
    keys, pair = tmp_path / "keys", make_key_pair("east", tmp_path)
    register_key_file(pair.public, keys)
    copy = tmp_path / "west.pub"
    copy.write_bytes(pair.public.read_bytes())
    with pytest.raises(ConflictError, match="expected a key of its own for 'west', 'east' has this one"):
        register_key_file(copy, keys)
    assert list(registered_keys(keys)) == ["east"]


def test_a_file_in_the_folder_that_is_no_key_is_shown_and_stays_until_removed(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.mkdir()
    (keys / "east.pub").write_text("not a key")
    (keys / "Not A Name.pub").write_text("not a key")
    assert registered_keys(keys) == {"east": None}
    with pytest.raises(ConflictError, match="remove it first"):
        register_key_file(make_key_pair("east", tmp_path).public, keys)
    remove_key("east", keys)
    assert enrol_client("east", tmp_path, keys).name in registered_keys(keys)


def private(key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey, *, passphrase: bytes = b"") -> bytes:
    hidden = BestAvailableEncryption(passphrase) if passphrase else NoEncryption()
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, hidden)


def others() -> dict[str, bytes]:
    curve, own = ec.generate_private_key(ec.SECP256R1()), ed25519.Ed25519PrivateKey.generate()
    return {
        "nothing": b"",
        "words": b"user-00",
        "another kind": private(curve),
        "another kind, public": curve.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
        "a passphrase": private(own, passphrase=b"user-00"),
        "bytes": own.private_bytes_raw(),
        "a long file": b"#" * 5000 + private(own),
    }


@pytest.mark.parametrize("what", list(others()))
def test_what_is_no_such_key_is_refused_and_not_repeated(tmp_path: Path, what: str) -> None:
    path = tmp_path / "east.pub"
    path.write_bytes(others()[what])
    path.chmod(0o600)
    for act in (read_private, read_public):
        with pytest.raises(SettingsError, match=r"east\.pub: expected an Ed25519") as raised:
            act(path)
        assert "user-00" not in str(raised.value)
    with pytest.raises(SettingsError, match="expected an Ed25519 public key"):
        register_key_file(path, tmp_path / "keys")
    assert not (tmp_path / "keys").exists()


def test_the_two_halves_are_not_taken_for_each_other(tmp_path: Path) -> None:
    pair = make_key_pair("east", tmp_path)
    pair.public.chmod(0o600)
    with pytest.raises(SettingsError, match="expected an Ed25519 private key"):
        read_private(pair.public)
    with pytest.raises(SettingsError, match="expected an Ed25519 public key"):
        read_public(pair.private)


@pytest.mark.parametrize("permissions", [0o604, 0o644, 0o602, 0o601])
def test_a_private_key_that_others_may_use_is_refused(tmp_path: Path, permissions: int) -> None:
    pair = make_key_pair("east", tmp_path)
    pair.private.chmod(permissions)
    with pytest.raises(SettingsError, match=rf"for its owner alone \(chmod 600\), got permissions {permissions:03o}"):
        read_private(pair.private)
    pair.private.chmod(0o440)  # as a cluster mounts it, for the group of the pod
    read_private(pair.private)


def test_files_that_are_not_there_or_cannot_be_written_are_named(tmp_path: Path) -> None:
    for act in (read_private, read_public):
        with pytest.raises(SettingsError, match=r"none: expected a file with a .* key"):
            act(tmp_path / "none")
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match="expected a writable path"):
        make_key_pair("east", tmp_path / "file")
