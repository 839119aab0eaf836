"""Who may stay at a port: by address, by having shown who they are, by having asked something whole."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from pydantic import ValidationError

from shared.web.connection_limits import KNOWN_ADDRESSES, Crowd, Guest
from shared.web.listening import Listening


@dataclass
class Door:
    """Guests by name; `gone`: on whom the crowd has hung up."""

    crowd: Crowd
    guests: dict[str, Guest] = field(default_factory=dict)
    busy: set[str] = field(default_factory=set)
    gone: list[str] = field(default_factory=list)

    def come(self, name: str, host: str = "192.0.2.1") -> str:
        self.guests[name] = Guest(host, lambda: name not in self.busy, lambda: self.gone.append(name))
        return self.crowd.enter(self.guests[name])

    def vouch(self, name: str) -> None:
        self.crowd.vouch(self.guests[name])


def test_the_oldest_that_asks_nothing_makes_room() -> None:
    door = Door(Crowd(most=4, of_address=0, kept=1))
    assert {door.come(name) for name in "abc"} == {"welcome"}
    door.busy = {"a"}
    assert door.come("d") == "welcome" and door.gone == ["b"]
    assert door.come("e") == "welcome" and door.gone == ["b", "c"]


def test_where_all_ask_something_the_next_is_told_so_and_the_one_after_not_even_that() -> None:
    door = Door(Crowd(most=4, of_address=0, kept=1), busy=set("abc"))
    assert [door.come(name) for name in "abcde"] == ["welcome"] * 3 + ["turned away", "refused"]
    door.crowd.leave(door.guests["d"])
    assert door.come("f") == "turned away"
    door.crowd.leave(door.guests["a"])
    assert door.come("g") == "welcome" and door.gone == []


def test_some_places_are_kept_for_whoever_comes_from_where_somebody_was_vouched_for() -> None:
    door = Door(Crowd(most=4, of_address=0, kept=2), busy=set("abxyz"))
    assert door.come("known", "192.0.2.9") == "welcome"
    door.vouch("known")
    door.crowd.leave(door.guests["known"])
    assert [door.come(name) for name in "abx"] == ["welcome", "welcome", "turned away"]
    assert [door.come(name, "192.0.2.9") for name in "yz"] == ["welcome", "welcome"]


def test_nobody_who_is_vouched_for_makes_room() -> None:
    door = Door(Crowd(most=4, of_address=0, kept=2))
    for name in "ab":
        door.come(name)
        door.vouch(name)
    assert [door.come(name, "192.0.2.2") for name in "cdef"] == ["welcome"] * 4
    assert door.gone == ["c", "d"]


def test_one_address_has_no_more_than_its_part_and_others_are_not_hung_up_on_for_it() -> None:
    door = Door(Crowd(most=100, of_address=2))
    assert door.come("other", "192.0.2.2") == "welcome"
    assert [door.come(name) for name in "abc"] == ["welcome"] * 3 and door.gone == ["a"]
    door.busy = {"b", "c"}
    assert door.come("d") == "turned away" and door.come("e", "192.0.2.2") == "welcome"


@pytest.mark.parametrize(
    ("host", "counts"),
    [("192.0.2.1", True), ("2001:db8::1", True), ("127.0.0.1", False), ("::1", False), ("10.1.2.3", False)],
)
def test_loopback_and_proxies_stand_for_many(host: str, counts: bool) -> None:
    door = Door(Crowd(most=100, of_address=1, exempt=("10.0.0.0/8",)), busy={"a", "b"})
    door.come("a", host)
    assert (door.come("b", host) == "turned away") == counts
    door.vouch("a")
    assert bool(door.crowd._known) == counts  # nor does one of them vouch for all


def test_of_ipv6_a_network_is_one_address() -> None:
    door = Door(Crowd(most=100, of_address=1), busy={"a"})
    assert (door.come("a", "2001:db8::1"), door.come("b", "2001:db8::2")) == ("welcome", "turned away")


def test_what_is_remembered_has_a_bound() -> None:
    door = Door(Crowd(most=4, of_address=0))
    for number in range(KNOWN_ADDRESSES + 10):
        door.come("a", f"192.0.{number // 256}.{number % 256}")
        door.vouch("a")
        door.crowd.leave(door.guests["a"])
    assert len(door.crowd._known) == KNOWN_ADDRESSES and not door.crowd._guests and not door.crowd._of


def test_places_must_be_left_for_strangers() -> None:
    with pytest.raises(ValidationError, match="kept_connections: expected less than most_connections = 4"):
        Listening(most_connections=4, kept_connections=4)
    assert Listening(most_connections=4).crowd().kept == 1
