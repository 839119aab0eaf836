"""All connections of one port -> which of them may stay, so that nobody keeps the others out by holding many.

A caller that has shown whose it is (a client's signature, an operator's token, a key) is vouched for. Whoever has not,
and has no whole request under way, makes room for the next one when there is none, the oldest first: a request that
comes in one piece needs its place for a moment, one that never comes whole keeps it only while nobody else wants it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Literal

from starlette.types import Scope

from shared.web.address import address_of

MOST, MOST_OF_ADDRESS, KEPT_PART = 512, 128, 4
TURNED_AWAY_PART = 4  # of `most`: so many more are told that there is no room; beyond them nobody is
KNOWN_ADDRESSES = 1000  # the one that was vouched for longest ago is forgotten first
VOUCH = "vouch"  # in the state of a request's scope
LOOPBACK = (ip_network("127.0.0.0/8"), ip_network("::1/128"))

Network = IPv4Network | IPv6Network
Standing = Literal["welcome", "turned away", "refused"]


@dataclass(eq=False)
class Guest:
    """One connection. `yields`: has it no whole request under way; `hang_up`: end it at once."""

    host: str
    yields: Callable[[], bool]
    hang_up: Callable[[], None]
    vouched: bool = False
    exempt: bool = field(init=False, default=False)  # from the limit of one address; the crowd says so once
    address: str = field(init=False)

    def __post_init__(self) -> None:
        self.address = address_of(self.host)


class Crowd:
    """most: connections at once; of_address: of one address, but of loopback's and of `exempt` networks (0: any);
    kept: of `most`, those that only callers get who are vouched for, or come from an address that was."""

    def __init__(
        self, most: int = MOST, of_address: int = MOST_OF_ADDRESS, kept: int | None = None, exempt: Iterable[str] = ()
    ) -> None:
        self.most, self.of_address = most, of_address
        self.kept = most // KEPT_PART if kept is None else kept
        self._exempt: tuple[Network, ...] = (*LOOPBACK, *(ip_network(one) for one in exempt))
        self._guests: dict[Guest, None] = {}  # welcome ones, in the order in which they came
        self._turned_away: set[Guest] = set()
        self._of: Counter[str] = Counter()
        self._known: OrderedDict[str, None] = OrderedDict()

    def enter(self, guest: Guest) -> Standing:
        """What becomes of a new connection. Another one may be hung up on for it."""
        guest.exempt = self._is_exempt(guest)
        if self._makes_room(guest):
            self._guests[guest] = None
            self._of[guest.address] += 1
            return "welcome"
        if len(self._turned_away) * TURNED_AWAY_PART >= self.most:
            return "refused"
        self._turned_away.add(guest)
        return "turned away"

    def leave(self, guest: Guest) -> None:
        """It is gone; to say so again changes nothing."""
        self._turned_away.discard(guest)
        if guest in self._guests:
            del self._guests[guest]
            self._of[guest.address] -= 1
            if not self._of[guest.address]:
                del self._of[guest.address]

    def vouch(self, guest: Guest) -> None:
        """It has shown whose it is."""
        guest.vouched = True
        if not guest.exempt:  # behind a proxy everybody has the same address
            self._known.pop(guest.address, None)
            self._known[guest.address] = None
            if len(self._known) > KNOWN_ADDRESSES:
                self._known.popitem(last=False)

    def _makes_room(self, guest: Guest) -> bool:
        full = self.of_address and not guest.exempt and self._of[guest.address] >= self.of_address
        if full and not self._dismiss(lambda other: other.address == guest.address):
            return False
        if len(self._guests) < self.most - self.kept:
            return True
        strangers = sum(not self._is_known(other) for other in self._guests)
        if not self._is_known(guest) and strangers >= self.most - self.kept:
            return self._dismiss(lambda other: not self._is_known(other))
        return len(self._guests) < self.most or self._dismiss()

    def _dismiss(self, chosen: Callable[[Guest], bool] = lambda _: True) -> bool:
        """Hang up on the oldest of these that yields, if there is one."""
        for guest in self._guests:
            if not guest.vouched and chosen(guest) and guest.yields():
                self.leave(guest)
                guest.hang_up()
                return True
        return False

    def _is_known(self, guest: Guest) -> bool:
        return guest.vouched or guest.address in self._known

    def _is_exempt(self, guest: Guest) -> bool:
        try:
            address = ip_address(guest.host)
        except ValueError:  # no address: a socket of this machine
            return True
        return any(address in network for network in self._exempt)


def vouch(scope: Scope) -> None:
    """Whoever has sent this request has shown whose it is; where the server keeps no crowd nothing follows."""
    if (vouched := scope.get("state", {}).get(VOUCH)) is not None:
        vouched()
