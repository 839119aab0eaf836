"""Who may stay at a port: by address, by having shown who they are, by having asked something whole."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from pydantic import ValidationError

from shared.web.connection_limits import KNOWN_ADDRESSES, ConnectionLimiter, LimitedConnection
from shared.web.listening import ListenSettings


@dataclass
class LimitedPort:
    """Connections by name; `gone`: those that the limiter has ended."""

    limiter: ConnectionLimiter
    connections: dict[str, LimitedConnection] = field(default_factory=dict)
    busy: set[str] = field(default_factory=set)
    gone: list[str] = field(default_factory=list)

    def come(self, name: str, host: str = "192.0.2.1") -> str:
        self.connections[name] = LimitedConnection(host, lambda: name not in self.busy, lambda: self.gone.append(name))
        return self.limiter.admit(self.connections[name])

    def mark_trusted(self, name: str) -> None:
        self.limiter.mark_trusted(self.connections[name])


def test_the_oldest_that_asks_nothing_makes_room() -> None:
    port = LimitedPort(ConnectionLimiter(most=4, of_address=0, kept=1))
    assert {port.come(name) for name in "abc"} == {"admitted"}
    port.busy = {"a"}
    assert port.come("d") == "admitted" and port.gone == ["b"]
    assert port.come("e") == "admitted" and port.gone == ["b", "c"]


def test_where_all_ask_something_the_next_is_told_so_and_the_one_after_not_even_that() -> None:
    port = LimitedPort(ConnectionLimiter(most=4, of_address=0, kept=1), busy=set("abc"))
    assert [port.come(name) for name in "abcde"] == ["admitted"] * 3 + ["full", "refused"]
    port.limiter.release(port.connections["d"])
    assert port.come("f") == "full"
    port.limiter.release(port.connections["a"])
    assert port.come("g") == "admitted" and port.gone == []


def test_some_places_are_kept_for_whoever_comes_from_where_somebody_was_vouched_for() -> None:
    port = LimitedPort(ConnectionLimiter(most=4, of_address=0, kept=2), busy=set("abxyz"))
    assert port.come("known", "192.0.2.9") == "admitted"
    port.mark_trusted("known")
    port.limiter.release(port.connections["known"])
    assert [port.come(name) for name in "abx"] == ["admitted", "admitted", "full"]
    assert [port.come(name, "192.0.2.9") for name in "yz"] == ["admitted", "admitted"]


def test_nobody_who_is_vouched_for_makes_room() -> None:
    port = LimitedPort(ConnectionLimiter(most=4, of_address=0, kept=2))
    for name in "ab":
        port.come(name)
        port.mark_trusted(name)
    assert [port.come(name, "192.0.2.2") for name in "cdef"] == ["admitted"] * 4
    assert port.gone == ["c", "d"]


def test_one_address_has_no_more_than_its_part_and_others_are_not_hung_up_on_for_it() -> None:
    port = LimitedPort(ConnectionLimiter(most=100, of_address=2))
    assert port.come("other", "192.0.2.2") == "admitted"
    assert [port.come(name) for name in "abc"] == ["admitted"] * 3 and port.gone == ["a"]
    port.busy = {"b", "c"}
    assert port.come("d") == "full" and port.come("e", "192.0.2.2") == "admitted"


@pytest.mark.parametrize(
    ("host", "counts"),
    [("192.0.2.1", True), ("2001:db8::1", True), ("127.0.0.1", False), ("::1", False), ("10.1.2.3", False)],
)
def test_loopback_and_proxies_stand_for_many(host: str, counts: bool) -> None:
    port = LimitedPort(ConnectionLimiter(most=100, of_address=1, exempt=("10.0.0.0/8",)), busy={"a", "b"})
    port.come("a", host)
    assert (port.come("b", host) == "full") == counts
    port.mark_trusted("a")
    assert bool(port.limiter._known) == counts  # nor does one of them vouch for all


def test_of_ipv6_a_network_is_one_address() -> None:
    port = LimitedPort(ConnectionLimiter(most=100, of_address=1), busy={"a"})
    assert (port.come("a", "2001:db8::1"), port.come("b", "2001:db8::2")) == ("admitted", "full")


def test_what_is_remembered_has_a_bound() -> None:
    port = LimitedPort(ConnectionLimiter(most=4, of_address=0))
    for number in range(KNOWN_ADDRESSES + 10):
        port.come("a", f"192.0.{number // 256}.{number % 256}")
        port.mark_trusted("a")
        port.limiter.release(port.connections["a"])
    assert len(port.limiter._known) == KNOWN_ADDRESSES and not port.limiter._connections and not port.limiter._of


def test_places_must_be_left_for_strangers() -> None:
    with pytest.raises(ValidationError, match="kept_connections: expected less than most_connections = 4"):
        ListenSettings(most_connections=4, kept_connections=4)
    assert ListenSettings(most_connections=4).connection_limiter().kept == 1
