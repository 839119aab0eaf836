"""Whose keys a silo believes that trusts on first use: a set is pinned at first, and what comes later needs consent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from client_service.boundary.ledger import Ledger
from client_service.secure_rounds.members import KnownMembers
from client_service.secure_rounds.round_memory import NAME, RoundMemory
from shared.errors import ConflictError, PrivacyError
from shared.method.declaration import Declaration, TensorSpec
from shared.protocol.secure.client import begin_secure_round
from shared.protocol.secure.messages import CommonTerms, Roster, RoundTerms, least_threshold
from shared.protocol.signing.keys import PrivateKey, new_key, raw_hex
from shared.sums.item_basis import WORD as COMMON_BASIS

KEYS: dict[str, PrivateKey] = {name: new_key() for name in ("ada", "bob", "cyd", "dan", "eve", "fay")}
HEX = "ab" * 32
TRAINING = Declaration(strategy="lpsfed", tensors=(TensorSpec(name="a", shape=(2,)),), scalars=(), secure=True)
SUMS = Declaration(
    strategy=COMMON_BASIS, tensors=(TensorSpec(name="basis.degrees", dtype="U32", shape=(2,)),), scalars=(), secure=True
)


def roster(names: str, declaration: Declaration = TRAINING, run: str = "run-1") -> Roster:
    """Of these clients, each with a key that it has signed."""
    common = CommonTerms(aggregator=HEX, start=HEX, method=HEX, seed=0, rounds=1, anchor=HEX)
    threshold = least_threshold(len(names.split()))
    terms = RoundTerms(run=run, round=1, threshold=threshold, declaration=declaration, common=common)
    stamps: dict[str, Any] = {"stamp": HEX, "catalogue": HEX} if declaration is SUMS else {}
    signed = (begin_secure_round(terms, name, KEYS[name], **stamps).message for name in names.split())
    return Roster(terms=terms, members=tuple(signed))


def believes(folder: Path, names: str = "", least: int = 3) -> KnownMembers:
    """As ada's client is after a start. `names`: whom it was told of when it joined."""
    return KnownMembers(None, RoundMemory(Ledger(folder / NAME)), known=names.split(), least=least)


def show(known: KnownMembers, names: str, declaration: Declaration = TRAINING) -> None:
    assert set(known.trusted_keys(roster(names, declaration), "ada", KEYS["ada"].public_key())) == set(names.split())


@pytest.mark.parametrize("declaration", [TRAINING, SUMS])
@pytest.mark.parametrize(
    ("told", "shown"),
    [
        ("ada bob cyd", "ada bob cyd"),
        ("ada bob cyd dan", "ada bob cyd"),  # one is not there yet
        ("ada bob cyd", "ada bob cyd dan"),  # one was invited later, and nobody is missing
    ],
)
def test_an_honest_federation_pins_its_set_without_a_word(
    tmp_path: Path, told: str, shown: str, declaration: Declaration
) -> None:
    known = believes(tmp_path, told)
    show(known, shown, declaration)
    show(believes(tmp_path, told), shown, declaration)  # after a restart as well
    assert known.status.waiting == () and [one.client for one in known.status.members] == shown.split()
    later = sorted(set(shown.split()) - set(told.split()))
    assert [one.client for one in known.status.members if not one.agreed] == later
    assert bool(known.notices) == bool(later)


@pytest.mark.parametrize("declaration", [TRAINING, SUMS])
def test_others_in_the_place_of_known_ones_need_consent_from_the_first_run_on(
    tmp_path: Path, declaration: Declaration
) -> None:
    known = believes(tmp_path, "ada bob cyd dan")
    with pytest.raises(PrivacyError, match="consented to, got eve, fay: `lpsfed members accept`"):
        show(known, "ada eve fay", declaration)
    assert known.status.members == () and [one.client for one in known.status.waiting] == ["eve", "fay"]
    show(known, "ada bob cyd", declaration)  # what was refused has pinned nothing
    assert known.status.waiting == ()


def test_who_was_told_of_nobody_pins_by_a_training_run_and_never_by_a_sum(tmp_path: Path) -> None:
    known = believes(tmp_path)
    with pytest.raises(PrivacyError, match="consented to, got bob, cyd"):
        show(known, "ada bob cyd", SUMS)
    show(known, "ada bob cyd")
    show(known, "ada bob cyd", SUMS)


def test_others_of_the_first_run_count_in_no_sum_until_they_are_accepted(tmp_path: Path) -> None:
    """They were registered after the silo had joined: the sum of it and of them alone is its own."""
    known = believes(tmp_path, "ada bob cyd dan")
    show(known, "ada bob cyd dan eve fay")
    known.require_enough(["ada", "bob", "cyd", "eve"], "run-1")
    with pytest.raises(PrivacyError, match="expected 3 or more that it has agreed to, got 1"):
        known.require_enough(["ada", "eve", "fay"], "run-1")
    with pytest.raises(PrivacyError, match="expected 3 or more that it has agreed to, got 1"):
        show(known, "ada eve fay", SUMS)
    known.accept({name: raw_hex(KEYS[name].public_key()) for name in ("eve", "fay")})
    show(known, "ada eve fay", SUMS)


def test_strangers_do_not_hold_the_shares_by_which_a_mask_is_restored(tmp_path: Path) -> None:
    known = believes(tmp_path, "ada bob cyd")
    show(known, "ada bob cyd dan eve fay")  # 3 of 6 whose threshold is 5
    many = {f"x{number}": new_key() for number in range(7)}
    KEYS.update(many)
    crowded = believes(tmp_path / "other", "ada bob cyd")
    with pytest.raises(PrivacyError, match="expected fewer that it has not agreed to, got 7"):
        show(crowded, " ".join(["ada", "bob", "cyd", *many]))


def test_a_silo_may_want_more_of_those_whom_it_knows_in_a_sum(tmp_path: Path) -> None:
    known = believes(tmp_path, "ada bob cyd dan", least=4)
    show(known, "ada bob cyd dan")
    with pytest.raises(PrivacyError, match="expected 4 or more that it has agreed to, got 3"):
        show(known, "ada bob cyd")


def test_a_new_key_of_a_known_name_needs_consent_too_and_no_key_serves_two_names(tmp_path: Path) -> None:
    show(believes(tmp_path), "ada bob cyd")
    before, KEYS["bob"] = KEYS["bob"], new_key()
    try:
        known = believes(tmp_path)
        with pytest.raises(PrivacyError, match="consented to, got bob"):
            show(known, "ada bob cyd")
        with pytest.raises(ConflictError, match="a different key for each member"):
            known.accept({"dan": raw_hex(before.public_key())})
        known.accept({"bob": raw_hex(KEYS["bob"].public_key())})
        show(known, "ada bob cyd")
        show(believes(tmp_path), "ada bob cyd")
    finally:
        KEYS["bob"] = before


def test_what_earlier_versions_have_pinned_is_the_set(tmp_path: Path) -> None:
    memory = RoundMemory(Ledger(tmp_path / NAME))
    for name in ("ada", "bob", "cyd"):
        memory.pin(name, raw_hex(KEYS[name].public_key()))
    show(believes(tmp_path), "ada bob cyd", SUMS)
    with pytest.raises(PrivacyError, match="consented to, got dan"):
        show(believes(tmp_path), "ada bob cyd dan")
