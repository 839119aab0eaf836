"""Whose update a combination of sums tells: exactly whose unit vector the sums' members span."""

from __future__ import annotations

import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.protocol.secure.membership import MemberSum, describe_exposed, find_exposed, find_isolated

NAMES = "abcdef"
SETS = st.lists(st.sets(st.sampled_from(NAMES), min_size=1), max_size=6)


def spanned(sums: list[set[str]]) -> frozenset[str]:
    """The same by exact arithmetic: adding the unit vector to the rows does not raise their rank."""
    if not sums:
        return frozenset()
    rows = sympy.Matrix([[int(name in members) for name in NAMES] for members in sums])
    units = {name: sympy.Matrix([[int(one == name) for one in NAMES]]) for name in NAMES}
    return frozenset(name for name, unit in units.items() if rows.col_join(unit).rank() == rows.rank())


@given(SETS)
@settings(deadline=None)
def test_exactly_those_are_isolated_whose_unit_vector_the_sums_span(sums: list[set[str]]) -> None:
    assert find_isolated(sums) == spanned(sums)


def test_one_who_leaves_is_told_by_a_difference_and_two_hide_each_other() -> None:
    assert find_isolated(["abcd", "abc"]) == {"d"}
    assert find_isolated(["abcd", "ab"]) == frozenset()
    assert find_isolated(["abcd", "ab", "abc"]) == {"c", "d"}  # who comes back alone tells of both


def test_three_sums_of_pairs_tell_everybody_though_no_two_of_them_differ_in_one() -> None:
    assert find_isolated(["ab", "bc", "ca"]) == frozenset("abc")


def test_a_thousand_members_over_many_rounds_take_no_time_to_speak_of() -> None:
    everybody = [f"silo-{number:04d}" for number in range(1024)]
    assert find_isolated([everybody, *(everybody[2 * skipped :] for skipped in range(1, 40))]) == frozenset()


def told(members: str, bearing: str = "") -> MemberSum:
    return MemberSum(frozenset(members), frozenset(bearing))


def test_who_bears_it_in_every_sum_of_its_own_is_not_exposed() -> None:
    assert find_exposed([told("abcd", "d"), told("abc")]) == frozenset()
    assert find_exposed([told("abcd"), told("abc")]) == {"d"}
    assert find_exposed([told("abcd"), told("abcd", "d"), told("abc")]) == {"d"}  # the first sum was not noised


def test_who_is_proven_to_cheat_is_not_protected_from_its_own_past() -> None:
    assert find_exposed([told("abcd"), told("abc")], ["d"]) == frozenset()


def test_the_reason_names_whom_it_protects_and_what_may_be_done() -> None:
    words = describe_exposed({"silo-2", "silo-1"}, "run-7")
    assert "run-7" in words and words.endswith("silo-1, silo-2") and "changing_members" in words
