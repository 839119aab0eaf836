"""An aggregator opens a content sum to which one silo alone adds more than zeros: that silo's part would be the sum.

Who: an aggregator that does not keep the rule by which it ends such a run. Each client holds it to the rule by what all
members have signed of their parts.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from client_service.boundary.ledger import Ledger
from client_service.federation.client_run import agree_method
from client_service.secure_rounds.round_memory import NAME, RoundMemory
from shared.errors import PrivacyError
from shared.method.settings import method_settings
from shared.protocol.secure.common import describe_few_parts, describe_unlike_lists
from shared.strategies.sum_strategy import declare_sums
from shared.sums.sum import NOTHING_ADDED
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
    shown = roster(of, cyd=said(NOTHING_ADDED, "3"), **parts)
    assert describe_unlike_lists(shown.members) is None
    if "dan" in members:
        memory.require_hidden(shown, members.split(), ())
    else:
        with pytest.raises(PrivacyError, match=r"^expected 3 silos or more with something to add, .* got 2 of 3: this"):
            memory.require_hidden(shown, members.split(), ())


def test_a_silo_that_says_another_encoder_is_in_no_sum() -> None:
    shown = roster(terms(), ada=said(ENCODER, "1"), bob=said("ef" * 32, "2"), cyd=said(NOTHING_ADDED, "3"))
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
        agree_method(settings, asked, "content")
    agree_method(settings, method_settings(**{"basis.kind": "content"}), "content")
