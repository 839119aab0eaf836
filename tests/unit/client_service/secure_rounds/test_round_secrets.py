"""A secure round's secrets on the client's disk: whole, for their owner alone, and of one round only."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from client_service.secure_rounds.masking import ROUND_FILE, RoundSecrets
from shared.errors import ProtocolError
from shared.files import lock_directory
from shared.method.declaration import Declaration, TensorSpec
from shared.method.parameters import Parameters
from shared.protocol.secure import client
from shared.protocol.secure.messages import CommonTerms, RoundTerms
from shared.protocol.signing.keys import new_key
from shared.strategies.lpsfed import make_mixing

DECLARATION = Declaration(
    strategy="lpsfed", tensors=(TensorSpec(name="w", shape=(2,)),), scalars=("margin", "rho"), secure=True
)
COMMON = CommonTerms(aggregator="0a" * 32, start="0b" * 32, method="0c" * 32, seed=0, rounds=1, anchor="0d" * 32)
TERMS = RoundTerms(run="run-1", round=1, threshold=3, declaration=DECLARATION, common=COMMON)
KEY = new_key()


def test_what_was_kept_is_there_after_a_restart_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    state = client.begin_secure_round(TERMS, "east", KEY)
    RoundSecrets(tmp_path).save(state)
    assert RoundSecrets(tmp_path).load("run-1", 1) == state
    assert [(one.name, stat.S_IMODE(one.stat().st_mode)) for one in tmp_path.iterdir()] == [(ROUND_FILE, 0o600)]


def test_a_crash_in_the_middle_of_writing_leaves_what_was_before(tmp_path: Path) -> None:
    state = client.begin_secure_round(TERMS, "east", KEY)
    RoundSecrets(tmp_path).save(state)
    (tmp_path / f".{ROUND_FILE}.0a1b.partial").write_text("half")
    with lock_directory(tmp_path):  # as a client does when it starts
        assert RoundSecrets(tmp_path).load("run-1", 1) == state
        RoundSecrets(tmp_path).save(state)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["lock", ROUND_FILE]
    assert stat.S_IMODE((tmp_path / ROUND_FILE).stat().st_mode) == 0o600


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"phase": "begun"}'])
def test_a_damaged_file_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ROUND_FILE).write_bytes(content)
    assert RoundSecrets(tmp_path).load("run-1", 1) is None


def test_another_round_s_secrets_are_of_no_use_and_go_with_the_round(tmp_path: Path) -> None:
    secrets = RoundSecrets(tmp_path)
    secrets.save(client.begin_secure_round(TERMS, "east", KEY))
    assert secrets.load("run-1", 2) is None and secrets.load("run-2", 1) is None
    secrets.delete()
    secrets.delete()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("rhobar", [{}, {"rhobar": -0.1}, {"rhobar": 1.1}])
def test_a_rhobar_that_is_none_is_refused(rhobar: dict[str, float]) -> None:
    given = Parameters({}, {"margin": 0.5} | rhobar)
    with pytest.raises(ProtocolError, match="rhobar from 0 to 1"):
        make_mixing(0.0).split_server_scalars(given)
