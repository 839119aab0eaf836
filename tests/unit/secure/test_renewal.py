"""Which further sum of the common basis may be made beside earlier ones: none of which a few silos' data are told."""

from __future__ import annotations

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.protocol.secure.membership import find_basis_objection, find_exposed_few

STAMPS = st.dictionaries(st.sampled_from("abcde"), st.sampled_from("xy"), min_size=3)


def summed(members: str, **changed: str) -> dict[str, str]:
    """Silos by their letters, all with the data "x" but for those that are said."""
    return {name: changed.get(name, "x") for name in members}


def few_by_hand(sums: list[dict[str, str]], least: int) -> bool:
    """Exact arithmetic: some set of fewer silos, without whose columns the sums' matrix has a lower rank."""
    parts = sorted({part for one in sums for part in one.items()})
    matrix = sympy.Matrix([[int(part in one.items()) for part in parts] for one in sums])
    names = sorted({name for name, _ in parts})
    for first in names:
        for second in names if least == 3 else (first,):
            kept = [place for place, (name, _) in enumerate(parts) if name not in (first, second)]
            if matrix[:, kept].rank() < matrix.rank():
                return True
    return False


@given(st.lists(STAMPS, min_size=1, max_size=4))
@settings(deadline=None)
def test_a_combination_of_few_silos_is_found_exactly_where_there_is_one(sums: list[dict[str, str]]) -> None:
    assert bool(find_exposed_few(sums, 3)) == few_by_hand(sums, 3)


@pytest.mark.parametrize(
    ("earlier", "new", "told"),
    [
        ([summed("abcd")], summed("abcd"), ""),  # the very same sum again
        ([summed("abcd")], summed("abc"), "d"),
        ([summed("abcd")], summed("abcde"), "e"),
        ([summed("abcd")], summed("abcde", a="y"), "ae"),
        ([summed("abcd")], summed("abcd", c="y"), "c"),
        ([summed("abcd")], summed("abcd", a="y", c="y"), "ac"),
        ([summed("abcd")], summed("abcd", a="y", b="y", c="y"), ""),
        ([summed("abcd")], summed("abcdefg"), ""),
        ([summed("abcd")], summed("defg"), ""),  # d is in both; three have gone and three have come
        ([summed("abc"), summed("abcdef")], summed("defg"), "g"),  # no two of these differ by fewer than three
        ([summed("abcdef"), summed("abc")], summed("def", f="y"), "f"),
        ([summed("abcd"), summed("abcd", a="y", b="y", c="y")], summed("abcd", a="y", b="y", c="z"), "c"),
    ],
)
def test_of_any_combination_of_sums_nothing_is_left_or_three_silos(
    earlier: list[dict[str, str]], new: dict[str, str], told: str
) -> None:
    assert find_exposed_few([*earlier, new], 3) == frozenset(told)
    words = find_basis_objection(earlier, new, 3)
    assert (words is None) == (not told)
    assert words is None or words.endswith(f"would tell of {', '.join(told)} alone")


def test_a_silo_may_demand_more_than_three() -> None:
    three_more = [summed("abcdef")], summed("abcdefghi")
    assert find_basis_objection(*three_more, 3) is None
    assert "4 silos or more together" in str(find_basis_objection(*three_more, 4))
    assert "4 silos or more in a sum" in str(find_basis_objection([], summed("abc"), 4))


def test_who_says_nothing_of_its_data_is_in_no_sum() -> None:
    assert "none of b" in str(find_basis_objection([], {"a": "x", "b": "", "c": "x"}, 3))


def test_hundreds_of_silos_over_many_sums_take_no_time_to_speak_of() -> None:
    everybody = [f"silo-{number:03d}" for number in range(300)]
    sums = [{name: f"{place * moment // 97}" for place, name in enumerate(everybody)} for moment in range(1, 6)]
    assert len(find_exposed_few([*sums, dict.fromkeys(everybody[3:], "x")], 3)) < 3
