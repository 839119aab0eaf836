"""An aggregator opens a content sum to which one silo alone adds more than zeros: that silo's part would be the sum.

Who: an aggregator that does not keep the rule by which it ends such a run. Each client holds it to the rule by what all
members have signed of their parts.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aggregator_service.rounds.secure_run import BasisPledge, Pledge, find_objection, record_stamps
from client_service.boundary.ledger import Ledger
from client_service.federation.client_run import check_method
from client_service.secure_rounds.round_memory import NAME, RoundMemory
from shared.errors import PrivacyError
from shared.method.settings import method_settings
from shared.protocol.secure.common import describe_few_parts, describe_unlike_lists
from shared.protocol.secure.messages import Roster
from shared.protocol.secure.server import SecureRound
from shared.strategies.sum_strategy import declare_sums
from shared.sums.sum import EMPTY_PART_DIGEST
from tests.support.small import small_client
from tests.unit.client_service.secure_rounds.test_memory import roster, terms

if TYPE_CHECKING:
    from conftest import Silos

ENCODER = "cd" * 32
DECLARATION = declare_sums(method_settings(**{"basis.kind": "content"}))["content"].model_copy(update={"secure": True})


def said(catalogue: str, stamp: str) -> dict[str, str]:
    return {"stamp": stamp * 64, "catalogue": catalogue}


@pytest.mark.parametrize("members", ["ada bob cyd dan", "ada bob cyd"])
def test_members_refuse_a_sum_of_too_few_parts_and_one_from_which_too_many_have_dropped(
    tmp_path: Path, members: str
) -> None:
    """Three of four add something; once one of these has dropped out, the sum would be of two."""
    memory, of = RoundMemory(Ledger(tmp_path / NAME)), terms().model_copy(update={"declaration": DECLARATION})
    parts = {name: said(ENCODER, place) for name, place in (("ada", "1"), ("bob", "2"), ("dan", "4"))}
    shown = roster(of, cyd=said(EMPTY_PART_DIGEST, "3"), **parts)
    assert describe_unlike_lists(shown.members) is None
    if "dan" in members:
        memory.require_safe_sum(shown, members.split(), ())
    else:
        with pytest.raises(PrivacyError, match=r"^expected 3 silos or more with something to add, .* got 2 of 3: this"):
            memory.require_safe_sum(shown, members.split(), ())


CHANGES = {"cyd": "67", "dan": "48", "eve": "59"}  # the data of one silo with texts, and of two without


def of_data(name: str) -> Roster:
    """The members of content sums, of whom two add zeros, with the data of one sum or of the next."""
    stamps = {one: pair[name == "run-2"] for one, pair in CHANGES.items()} | {"ada": "1", "bob": "2"}
    parts = {one: said(EMPTY_PART_DIGEST if one in ("dan", "eve") else ENCODER, stamp) for one, stamp in stamps.items()}
    of = terms(run=name).model_copy(update={"declaration": DECLARATION})
    return roster(of, "ada bob cyd dan eve", **parts)


def test_zeros_of_others_do_not_hide_what_changed_in_one_silo_since_an_earlier_sum(tmp_path: Path) -> None:
    """The difference of the two sums is one silo's change, however many without texts have changed with it."""
    memory, first, second = RoundMemory(Ledger(tmp_path / NAME)), of_data("run-1"), of_data("run-2")
    everybody = list(first.keys)
    memory.require_safe_sum(first, everybody, ())
    memory.remember_sum(first, everybody, ())
    for one in (memory, RoundMemory(Ledger(tmp_path / NAME))):
        with pytest.raises(PrivacyError, match="beside those, this sum would tell of cyd alone"):
            one.require_safe_sum(second, everybody, ())
        one.require_safe_sum(first, everybody, ())
    item_sums = second.terms.model_copy(update={"declaration": DECLARATION.model_copy(update={"strategy": "basis"})})
    memory.require_renewable(second.model_copy(update={"terms": item_sums}), everybody, 3)


def test_an_aggregator_that_keeps_the_rule_does_not_open_that_sum() -> None:
    first, second = (SecureRound(terms=of.terms, keys=of.keys) for of in map(of_data, ("run-1", "run-2")))
    pledge = Pledge(declaration=DECLARATION, aggregator="0a" * 32, start="ab" * 32, basis=BasisPledge(least=3))
    assert find_objection(pledge, first) is None
    asked = record_stamps(pledge, first.model_copy(update={"masked": first.keys})).basis
    assert asked is not None and len(asked.own) == len(asked.adding) == 1
    later = BasisPledge(least=3, earlier=asked.own, earlier_adding=asked.adding)
    objection = find_objection(pledge.model_copy(update={"basis": later}), second) or ""
    assert "beside those, this sum would tell of cyd alone" in objection


def test_a_silo_that_says_another_encoder_is_in_no_sum() -> None:
    shown = roster(terms(), ada=said(ENCODER, "1"), bob=said("ef" * 32, "2"), cyd=said(EMPTY_PART_DIGEST, "3"))
    assert "got" in (describe_unlike_lists(shown.members) or "")
    assert describe_few_parts([one for one in shown.members if one.client == "cyd"], 3) is not None


@pytest.mark.parametrize("encoder", ["glove/64/1", "projection/64/2", "projection/1024/1", "projection/8/1"])
def test_a_silo_sums_by_the_encoder_that_it_has_agreed_to_alone(silos: Silos, tmp_path: Path, encoder: str) -> None:
    """Sums in other columns over the same data would be further equations of its users, and wide ones tell more."""
    (shard,) = silos(1)
    own = method_settings(**{"sums.content.kind": "content"})
    settings = small_client(shard, tmp_path / "state", method=own, policy={"content": "open"})
    asked = method_settings(**{"basis.kind": "content", "basis.encoder": encoder})
    with pytest.raises(PrivacyError):
        check_method(settings, asked, "content")
    check_method(settings, method_settings(**{"basis.kind": "content"}), "content")
