"""Token buckets by a clock of the test's own; a table that cannot grow; one bucket for all addresses of a network."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.web import middleware as subject
from shared.web.middleware import TokenBuckets, address_key


class Clock:
    """Stands until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_is_let_through_and_then_as_many_as_the_rate_says() -> None:
    clock = Clock()
    buckets = TokenBuckets(2.0, clock=clock)
    assert [buckets.take("a") for _ in range(4)] == [0.0] * 4  # two seconds' worth
    assert buckets.take("a") == 0.5 and buckets.take("b") == 0.0
    clock.now += 0.25
    assert buckets.take("a") == 0.25
    clock.now += 0.25
    assert buckets.take("a") == 0.0 and buckets.take("a") == 0.5
    clock.now += 1e6
    assert [buckets.take("a") for _ in range(5)] == [0.0] * 4 + [0.5]  # no more is saved up than one burst


def test_less_than_one_a_second_still_lets_the_first_one_in() -> None:
    clock = Clock()
    buckets = TokenBuckets(0.1, clock=clock)
    assert (buckets.take("a"), buckets.take("a")) == (0.0, 10.0)


def test_a_rate_of_nothing_is_no_limit_and_remembers_nobody() -> None:
    buckets = TokenBuckets(0.0)
    assert {buckets.take("a") for _ in range(1000)} == {0.0} and len(buckets._held) == 0


@given(gaps=st.lists(st.floats(0, 3), min_size=1, max_size=60), rate=st.floats(0.1, 50))
def test_never_more_than_the_rate_and_one_burst(gaps: list[float], rate: float) -> None:
    clock = Clock()
    buckets, taken = TokenBuckets(rate, clock=clock), 0
    for gap in gaps:
        clock.now += gap
        taken += buckets.take("a") == 0.0
    assert taken <= sum(gaps) * rate + max(1.0, rate * subject.BURST_SECONDS) + 1e-6


def test_the_table_is_bounded_and_the_one_that_has_been_silent_for_longest_is_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(subject, "MOST_CALLERS", 3)
    buckets = TokenBuckets(0.5, clock=Clock())
    for who in ("a", "b", "c", "a", "d"):
        buckets.take(who)
    assert len(buckets._held) == 3
    assert [math.ceil(buckets.take(who)) for who in ("a", "c", "d")] == [2, 2, 2]
    assert buckets.take("b") == 0.0


@pytest.mark.parametrize(
    ("client", "who"),
    [
        (("192.0.2.1", 5), "192.0.2.1"),
        (("192.0.2.1", 6), "192.0.2.1"),
        (("2001:db8:1:2:3:4:5:6", 5), "2001:db8:1:2::/64"),
        (("2001:db8:1:2::1", 5), "2001:db8:1:2::/64"),
        (("2001:db8:1:3::1", 5), "2001:db8:1:3::/64"),
        (("::ffff:192.0.2.1", 5), "192.0.2.1"),
        (("testclient", 5), "testclient"),
        (None, ""),
    ],
)
def test_a_caller_is_an_address_and_of_ipv6_a_network(client: tuple[str, int] | None, who: str) -> None:
    assert address_key({"type": "http", "client": client}) == who
