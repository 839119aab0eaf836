"""What a client never forgets of its secure rounds: over restarts too, and a damaged file keeps it from starting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from client_service.boundary.ledger import Ledger
from client_service.secure_rounds.members import KnownMembers
from client_service.secure_rounds.round_memory import NAME, RoundMemory
from shared.errors import DataError, PrivacyError, SettingsError
from shared.method.declaration import Declaration
from shared.protocol.secure.client import begin_secure_round
from shared.protocol.secure.messages import CommonTerms, Possession, PublicKeys, Roster, RoundTerms
from shared.protocol.signing.enrolment import make_key_pair
from shared.protocol.signing.keys import new_key, raw_hex
from shared.protocol.signing.members import write_registry

OWN = "0a" * 32
DECLARATION = Declaration(strategy="lpsfed", tensors=(), scalars=("margin", "rho"), secure=True)
HEX = "ab" * 32
KEYS = {name: new_key() for name in ("ada", "bob", "cyd", "dan", "eve")}


def terms(*, run: str = "run-1", number: int = 1, threshold: int = 3, **common: Any) -> RoundTerms:
    told = {"aggregator": OWN, "start": f"{number:064x}", "method": HEX, "seed": 0, "rounds": 9, "anchor": HEX}
    place = {"run": run, "round": number, "threshold": threshold}
    return RoundTerms(**place, declaration=DECLARATION, common=CommonTerms(**(told | common)))


def roster(of: RoundTerms, names: str = "ada bob cyd dan", **flags: dict[str, bool]) -> Roster:
    points = dict.fromkeys(("deal", "cipher", "mask", "commitment"), HEX)
    members = tuple(
        PublicKeys(
            run=of.run,
            round=of.round,
            client=name,
            identity=raw_hex(KEYS[name].public_key()),
            possession=Possession(challenge="0b" * 32, response="0b" * 32),
            common=of.common,
            **points,
            **flags.get(name, {}),
        )
        for name in names.split()
    )
    return Roster(terms=of, members=members)


def summed(folder: Path, number: int, members: str, **changed: Any) -> None:
    """A client, started anew, that is asked to help with this sum of a round, and does."""
    memory, shown = RoundMemory(Ledger(folder / NAME)), roster(terms(number=number, **changed))
    memory.require_safe_sum(shown, members.split(), ())
    memory.remember_sum(shown, members.split(), ())


def test_a_round_is_begun_once_under_any_terms_and_its_run_keeps_its_threshold(tmp_path: Path) -> None:
    memory = RoundMemory(Ledger(tmp_path / NAME))
    assert not memory.has_begun(terms())
    for _ in range(2):
        memory.remember_exchange(terms())
    again = RoundMemory(Ledger(tmp_path / NAME))
    assert again.has_begun(terms()) and again.has_begun(terms(threshold=4, seed=7, start=HEX))
    assert not again.has_begun(terms(number=2)) and not again.has_begun(terms(run="run-2"))
    assert not again.has_begun(terms(aggregator="0b" * 32))  # another federation's run-1 is another run
    again.require_pinned_terms(terms(number=2))
    with pytest.raises(PrivacyError, match="with which run-1 began, threshold 3, got 4"):
        again.require_pinned_terms(terms(number=2, threshold=4))
    again.require_pinned_terms(terms(run="run-2", threshold=4))
    assert len((tmp_path / NAME).read_text().splitlines()) == 1


def test_a_round_begins_with_what_was_said_first_and_another_word_later_is_refused(tmp_path: Path) -> None:
    RoundMemory(Ledger(tmp_path / NAME)).remember_start(OWN, "run-1", 2, "first")
    again = RoundMemory(Ledger(tmp_path / NAME))
    again.remember_start(OWN, "run-1", 2, "first")
    with pytest.raises(PrivacyError, match="the start of round 2 of run-1"):
        again.remember_start(OWN, "run-1", 2, "later")
    assert again.start_of(OWN, "run-1", 2) == "first"
    with pytest.raises(PrivacyError, match="the start of round 3 of run-1"):
        again.start_of(OWN, "run-1", 3)


@pytest.mark.parametrize("changed", [{"seed": 1}, {"rounds": 40}, {"method": "cd" * 32}])
def test_a_run_keeps_its_settings_in_all_of_its_rounds(tmp_path: Path, changed: dict[str, Any]) -> None:
    RoundMemory(Ledger(tmp_path / NAME)).remember_exchange(terms())
    again = RoundMemory(Ledger(tmp_path / NAME))
    again.require_pinned_terms(terms(number=2))
    again.require_pinned_terms(terms(run="run-2", **changed))
    with pytest.raises(PrivacyError, match=f"with which run-1 began, {next(iter(changed))}"):
        again.require_pinned_terms(terms(number=2, **changed))


def test_who_has_missed_a_sum_of_a_run_goes_on_in_the_next_one(tmp_path: Path) -> None:
    memory = RoundMemory(Ledger(tmp_path / NAME))
    memory.require_every_sum(terms())
    summed(tmp_path, 1, "ada bob cyd")
    RoundMemory(Ledger(tmp_path / NAME)).require_every_sum(terms(number=2))
    with pytest.raises(PrivacyError, match="not with round 2"):
        RoundMemory(Ledger(tmp_path / NAME)).require_every_sum(terms(number=3))
    with pytest.raises(PrivacyError, match="not with round 1"):
        RoundMemory(Ledger(tmp_path / NAME)).require_every_sum(terms(number=2, run="run-2"))


def test_a_sum_that_differs_from_an_earlier_one_in_one_client_is_refused_after_a_restart_too(tmp_path: Path) -> None:
    summed(tmp_path, 1, "ada bob cyd dan")
    summed(tmp_path, 2, "ada bob cyd dan")
    with pytest.raises(PrivacyError, match="would tell the update of dan"):
        summed(tmp_path, 3, "ada bob cyd")
    summed(tmp_path, 3, "ada bob")
    with pytest.raises(PrivacyError, match="would tell the update of cyd, dan"):
        summed(tmp_path, 4, "ada bob cyd")


def test_from_one_start_no_other_members_are_summed_in_any_run(tmp_path: Path) -> None:
    summed(tmp_path, 1, "ada bob cyd dan")
    same = {"run": "run-2", "start": terms().common.start}
    summed(tmp_path, 1, "ada bob cyd dan", **same)
    for settings in ({}, {"method": "cd" * 32, "seed": 5}):  # which settings may be without effect is not ours to judge
        with pytest.raises(PrivacyError, match="another seed"):
            summed(tmp_path, 1, "ada bob", **same, **settings)
    summed(tmp_path, 1, "ada bob", run="run-2", start="cd" * 32)


@pytest.mark.parametrize(
    ("flags", "word", "bears"),
    [
        ({"noised": True}, False, True),
        ({"changing_members": True}, True, True),
        ({"changing_members": True}, False, False),
        ({}, True, False),
    ],
)
def test_who_is_noised_or_allows_it_together_with_the_operator_may_leave_alone(
    tmp_path: Path, flags: dict[str, bool], word: bool, bears: bool
) -> None:
    memory = RoundMemory(Ledger(tmp_path / NAME))
    first = roster(terms(changing_members=word), dan=flags)
    memory.remember_sum(first, ["ada", "bob", "cyd", "dan"], ())
    later = roster(terms(number=2, changing_members=word), "ada bob cyd")
    if bears:
        RoundMemory(Ledger(tmp_path / NAME)).require_safe_sum(later, ["ada", "bob", "cyd"], ())
    else:
        with pytest.raises(PrivacyError, match="of dan"):
            RoundMemory(Ledger(tmp_path / NAME)).require_safe_sum(later, ["ada", "bob", "cyd"], ())


def test_who_was_proven_to_cheat_protects_nobody_in_later_rounds_either(tmp_path: Path) -> None:
    summed(tmp_path, 1, "ada bob cyd dan")
    memory, second = RoundMemory(Ledger(tmp_path / NAME)), roster(terms(number=2))
    memory.require_safe_sum(second, ["ada", "bob", "cyd"], ["dan"])
    memory.remember_sum(second, ["ada", "bob", "cyd"], ["dan"])
    summed(tmp_path, 3, "ada bob cyd")


@pytest.mark.parametrize("damage", ["cut", "changed", "foreign"])
def test_a_damaged_memory_is_none_to_start_with(tmp_path: Path, damage: str) -> None:
    summed(tmp_path, 1, "ada bob cyd dan")
    summed(tmp_path, 2, "ada bob cyd dan", run="run-2")
    path = tmp_path / NAME
    lines = path.read_text().splitlines(keepends=True)
    changed = {"cut": lines[1:], "changed": [lines[0].replace("dan", "din"), lines[1]], "foreign": ["{}\n"]}
    path.write_text("".join(changed[damage]))
    with pytest.raises(DataError):
        RoundMemory(Ledger(tmp_path / NAME))


# --- whom it believes


def test_the_file_of_members_is_read_again_once_it_has_changed(tmp_path: Path) -> None:
    aggregator = make_key_pair("aggregator", tmp_path).public
    clients = [make_key_pair(name, tmp_path / "keys").public for name in ("ada", "bob")]
    file = write_registry(tmp_path / "members.toml", aggregator, clients[:1])
    known, own = KnownMembers(file, RoundMemory(Ledger(tmp_path / NAME))), new_key().public_key()
    assert set(known.trusted_keys(roster(terms()), "zoe", own)) == {"ada"}
    write_registry(file, aggregator, clients)
    assert set(known.trusted_keys(roster(terms()), "zoe", own)) == {"ada", "bob"}
    file.unlink()
    with pytest.raises(SettingsError, match="expected a file of members"):
        known.aggregator()


def test_a_file_with_another_key_of_the_silo_itself_is_another_federation_s(tmp_path: Path) -> None:
    aggregator = make_key_pair("aggregator", tmp_path).public
    file = write_registry(tmp_path / "members.toml", aggregator, [make_key_pair("ada", tmp_path / "keys").public])
    known = KnownMembers(file, RoundMemory(Ledger(tmp_path / NAME)))
    with pytest.raises(PrivacyError, match="this client's own public key under 'ada'"):
        known.trusted_keys(roster(terms()), "ada", KEYS["ada"].public_key())


def test_on_first_use_each_key_is_pinned_for_good(tmp_path: Path) -> None:
    known = KnownMembers(None, RoundMemory(Ledger(tmp_path / NAME)))
    first, other = raw_hex(new_key().public_key()), raw_hex(new_key().public_key())
    with pytest.raises(PrivacyError, match="got one without a signature"):
        known.aggregator()
    assert raw_hex(known.aggregator(first)) == first
    signed = (begin_secure_round(terms(), name, KEYS[name]).message for name in ("ada", "bob", "cyd"))
    shown = Roster(terms=terms(), members=tuple(signed))
    known.trusted_keys(shown, "ada", KEYS["ada"].public_key())
    again = KnownMembers(None, RoundMemory(Ledger(tmp_path / NAME)))
    assert raw_hex(again.aggregator(other)) == raw_hex(again.aggregator()) == first
    forged = shown.members[1].model_copy(update={"identity": other})
    lying = Roster(terms=shown.terms, members=(shown.members[0], forged, shown.members[2]))
    with pytest.raises(PrivacyError, match="members that this silo has consented to, got bob: `lpsfed members acc"):
        again.trusted_keys(lying, "ada", KEYS["ada"].public_key())
    assert [one.client for one in again.status.waiting] == ["bob"] and again.status.refused == "run-1"
