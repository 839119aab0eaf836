"""`lpsfed ledger`: records at rest are verified and left as they are; a new key and a lost record have a way on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from client_service.boundary.ledger import LEDGER, Ledger
from client_service.boundary.ledger_heads import NAME, HeadedLedger, LedgerHeads
from client_service.privacy.accounting import ACCOUNT, Account, Charge
from client_service.refresh.record_check import LONGEST_REASON
from shared.errors import DataError, SettingsError
from shared.protocol.signing.enrolment import KeyFiles, make_key_pair
from shared.protocol.signing.keys import read_private
from simulation.cli import app

SHARD = "1" * 64


@pytest.fixture
def pair(tmp_path: Path) -> KeyFiles:
    return make_key_pair("east", tmp_path / "keys")


@pytest.fixture
def state(tmp_path: Path, pair: KeyFiles) -> Path:
    """Of a client that has sent one release and asked once since."""
    folder = tmp_path / "state"
    (folder / "privacy").mkdir(parents=True)
    heads = LedgerHeads(folder, read_private(pair.private))
    ledger, account = HeadedLedger(heads, LEDGER), Account(heads, SHARD)
    account.charge("round", {"tensors": Charge("gaussian", 3.0)}, {}, run="run-1", round=1, epsilon=1.5)
    ledger.append(
        "intent", durable_head=True, call="update", privacy={"epsilon": 1.5, "delta": 1e-5, "account": account.end}
    )
    ledger.append("outcome", of=1)
    ledger.save_head()
    return folder


def run(*words: object) -> tuple[int, str]:
    found = CliRunner().invoke(app, ["ledger", *map(str, words)])
    if isinstance(found.exception, (DataError, SettingsError)):
        raise found.exception
    return found.exit_code, found.stdout


def verified(state: Path, pair: KeyFiles) -> tuple[int, str]:
    return run("verify", "--state-directory", state, "--signing-key-file", pair.private)


def cut(path: Path, keep: int) -> None:
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:keep]))


def test_whole_records_are_told_in_one_line(state: Path, pair: KeyFiles) -> None:
    before = {path: path.read_bytes() for path in state.rglob("*") if path.is_file()}
    assert verified(state, pair) == (0, f"whole: {LEDGER} 2, {ACCOUNT} 1 entries\n")
    code, text = run("verify", "--state-directory", state)
    assert code == 0 and "not authenticated: the client's key, or the heads, are missing" in text
    assert {path: path.read_bytes() for path in state.rglob("*") if path.is_file()} == before


def test_each_fault_is_a_line_and_ends_with_1(state: Path, pair: KeyFiles) -> None:
    cut(state / LEDGER, 1)
    code, text = verified(state, pair)
    assert code == 1 and len(text.splitlines()) == 1 and "expected at least 2 entries" in text
    cut(state / ACCOUNT, 0)
    code, text = verified(state, pair)
    assert code == 1 and len(text.splitlines()) == 3 and str(state / ACCOUNT) in text
    assert "expected the charge of the last release in" in text.splitlines()[-1]
    code, text = run("verify", "--state-directory", state, "--signing-key-file", pair.private, "--json")
    found = json.loads(text)
    assert (
        code == 1 and not found["whole"] and found["entries"] == {LEDGER: 1, ACCOUNT: 0} and len(found["faults"]) == 3
    )


def test_a_changed_line_before_the_head_is_found_too(state: Path, pair: KeyFiles) -> None:
    path = state / LEDGER
    path.write_text(path.read_text().replace('"epsilon":1.5', '"epsilon":0.5', 1))
    assert "line 1: expected the chain to hold" in verified(state, pair)[1]


def test_heads_under_another_key_are_a_fault_and_taken_for_true_without_a_key(state: Path, tmp_path: Path) -> None:
    other = make_key_pair("east", tmp_path / "other")
    code, text = verified(state, other)
    assert code == 1 and "after a new key: lpsfed ledger rekey" in text
    assert run("verify", "--state-directory", state)[0] == 0


def test_a_new_key_takes_the_heads_over_once(state: Path, pair: KeyFiles, tmp_path: Path) -> None:
    other = make_key_pair("east", tmp_path / "other")
    words = ("--state-directory", state, "--old-key-file", pair.private, "--new-key-file", other.private)
    for _ in range(2):
        assert run("rekey", *words)[0] == 0
        assert verified(state, other)[0] == 0 and verified(state, pair)[0] == 1
    third = make_key_pair("east", tmp_path / "third")
    words = ("--state-directory", state, "--old-key-file", pair.private, "--new-key-file", third.private)
    with pytest.raises(DataError, match="made with another"):
        run("rekey", *words)
    assert verified(state, other)[0] == 0


def test_what_is_left_can_be_adopted_with_a_reason_that_stays(state: Path, pair: KeyFiles) -> None:
    cut(state / LEDGER, 1)
    assert verified(state, pair)[0] == 1
    words = ("--state-directory", state, "--signing-key-file", pair.private, "--reason", "the disk was replaced")
    assert run("adopt", *words, "--give-up", "ab" * 16)[0] == 0
    assert verified(state, pair)[0] == 0 and (state / f"{NAME}.replaced").exists()
    ledger = Ledger(state / LEDGER)
    *_, last = ledger.entries()
    assert (last["kind"], last["reason"], last["gave_up"]) == ("adopted", "the disk was replaced", "ab" * 16)
    assert ledger.knows_nonce("ab" * 16) and ledger.verify() == 2


def test_a_client_whose_state_is_lost_begins_anew_with_an_adoption(tmp_path: Path, pair: KeyFiles) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    words = ("--state-directory", empty, "--signing-key-file", pair.private, "--reason", "disk lost")
    assert run("adopt", *words, "--give-up", "ab" * 16)[0] == 0
    assert verified(empty, pair)[0] == 0
    ledger = HeadedLedger(LedgerHeads(empty, read_private(pair.private)), LEDGER)
    assert len(ledger) == 1 and ledger.knows_nonce("ab" * 16)


def test_an_account_that_forgets_cannot_be_adopted(state: Path, pair: KeyFiles) -> None:
    cut(state / ACCOUNT, 0)
    before = {path: path.read_bytes() for path in state.rglob("*") if path.is_file() and path.name != "lock"}
    words = ("--state-directory", state, "--signing-key-file", pair.private, "--reason", "why not")
    with pytest.raises(DataError, match="restore the newest account; nothing was changed"):
        run("adopt", *words)
    after = {path: path.read_bytes() for path in state.rglob("*") if path.is_file() and path.name != "lock"}
    assert after == before


@pytest.mark.parametrize("reason", ["", "x" * (LONGEST_REASON + 1)])
def test_an_adoption_needs_a_reason_and_a_key(state: Path, pair: KeyFiles, reason: str) -> None:
    with pytest.raises(SettingsError, match="reason: expected"):
        run("adopt", "--state-directory", state, "--signing-key-file", pair.private, "--reason", reason)
    with pytest.raises(SettingsError, match="expected the client's private key"):
        run("adopt", "--state-directory", state, "--reason", "why not")


def test_where_there_is_no_state_directory_it_says_so(tmp_path: Path, pair: KeyFiles) -> None:
    with pytest.raises(SettingsError, match="expected a client's state directory, got none"):
        verified(tmp_path / "nowhere", pair)
    assert not (tmp_path / "nowhere").exists()
