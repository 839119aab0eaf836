"""The client's private key: given, or in its place; never made by the client, never anybody's to read, never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.errors import SettingsError
from shared.protocol.signing.enrolment import make_key_pair, read_own_key
from shared.protocol.signing.keys import fingerprint, read_public


def test_the_key_lies_with_the_state_or_where_the_settings_say(tmp_path: Path) -> None:
    state, given = make_key_pair("east", tmp_path / "state"), make_key_pair("given", tmp_path)
    assert fingerprint(read_own_key("east", tmp_path / "state").public_key()) == fingerprint(read_public(state.public))
    found = read_own_key("east", tmp_path / "state", given.private)
    assert fingerprint(found.public_key()) == fingerprint(read_public(given.public))


def test_a_client_without_a_key_is_told_how_to_get_one_and_makes_none(tmp_path: Path) -> None:
    for given in (None, tmp_path / "mounted"):
        with pytest.raises(SettingsError, match="expected the private key of 'east'; `lpsfed keys new east` makes one"):
            read_own_key("east", tmp_path / "state", given)
    assert list(tmp_path.iterdir()) == []


def test_a_key_that_others_may_read_is_refused_and_not_shown(tmp_path: Path) -> None:
    pair = make_key_pair("east", tmp_path)
    pair.private.chmod(0o644)
    with pytest.raises(SettingsError, match=r"east\.key: .*chmod 600") as raised:
        read_own_key("east", tmp_path)
    secret = pair.private.read_text().splitlines()[1]
    assert secret not in str(raised.value)
