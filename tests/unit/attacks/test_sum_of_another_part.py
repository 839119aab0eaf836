"""A silo takes part in the sums that it has declared, each under its own part and on its own settings.

Who: an aggregator that asks for a sum which the silo's policy has not allowed, or for an allowed one under the name of
another part, whose settings are less careful.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from client_service.federation.client_run import check_method
from shared.errors import PrivacyError, ProtocolError, SettingsError
from shared.method.settings import MethodSettings, method_settings
from shared.sums import SUMS, list_sums, method_of_part
from shared.sums.transitions import TRANSITIONS
from tests.support.small import small_client

if TYPE_CHECKING:
    from conftest import Silos

BOTH = {"catalogue": 40, "basis.kind": "exact", "basis.least_pairs": 5, "sums.visits.kind": "transitions"}
OPEN = {"common_basis": "open", "transitions": "open"}


@pytest.fixture(autouse=True)
def second_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SUMS, "transitions", replace(TRANSITIONS, part="visits"))


def test_a_part_that_the_silo_has_not_declared_is_refused(silos: Silos, tmp_path: Path) -> None:
    (shard,) = silos(1)
    own = method_settings(catalogue=40, **{"basis.kind": "exact"})
    settings = small_client(shard, tmp_path, method=own, policy={"common_basis": "open"}, catalogue=None)
    visits = method_settings(catalogue=40, **{"basis.kind": "transitions"})
    with pytest.raises(PrivacyError, match=r"^policy: expected transitions = 'open'"):
        check_method(settings, visits, "visits")
    allowing = settings.model_copy(update={"policy": settings.policy.model_copy(update={"transitions": "open"})})
    with pytest.raises(ProtocolError, match=r"^part: expected 'training' or 'basis', .* got 'visits'"):
        check_method(allowing, visits, "visits")


def test_a_sum_under_the_name_of_another_part_is_refused(silos: Silos, tmp_path: Path) -> None:
    (shard,) = silos(1)
    own = method_settings(**BOTH)
    settings = small_client(shard, tmp_path, method=own, policy=OPEN, catalogue=None)
    for part in ("basis", "visits"):
        asked = method_of_part(own, part)
        assert check_method(settings, asked, part).basis == asked.basis
        other = "visits" if part == "basis" else "basis"
        with pytest.raises(ProtocolError, match=rf"^part: expected .*, got '{other}'"):
            check_method(settings, asked, other)


def test_each_part_is_held_to_its_own_settings(silos: Silos, tmp_path: Path) -> None:
    (shard,) = silos(1)
    own = method_settings(**BOTH)
    settings = small_client(shard, tmp_path, method=own, policy=OPEN, catalogue=None)
    for part, least in (("basis", 5), ("visits", 3)):
        asked = method_of_part(own, part)
        careless = asked.model_copy(update={"basis": asked.basis.model_copy(update={"least_pairs": least - 1})})
        with pytest.raises(PrivacyError, match=rf"expected a run with basis.least_pairs = {least} or more"):
            check_method(settings, careless, part)


def test_a_federation_has_one_sum_a_part() -> None:
    assert list(list_sums(method_settings(**BOTH))) == ["basis", "visits"]
    with pytest.raises(SettingsError, match=r"^sums.visits.kind: expected a sum of the part 'visits', got 'exact'"):
        list_sums(method_settings(catalogue=40, **{"sums.visits.kind": "exact"}))
    with pytest.raises(SettingsError, match=r"^sums.basis: expected one sum a part, got 'exact' and 'iterated'"):
        list_sums(method_settings(catalogue=40, **{"basis.kind": "exact", "sums.basis.kind": "iterated"}))
    assert method_of_part(MethodSettings(), "visits").basis.kind == "off"
