"""Connection limits of a port, in total and for each address.

A caller that has shown a signature, an operator's token or a key is trusted. When the port is full, the oldest
connection that is not trusted and has no complete request in progress is closed for the next one. A request that
arrives in one piece needs its place only for a moment.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Literal

from starlette.types import Scope

from shared.web.address import caller_address

MOST, MOST_OF_ADDRESS, RESERVED_PART = 512, 128, 4
FULL_ANSWERS_PART = (
    4  # most / 4 further connections get an answer that the port is full; the rest are closed unanswered
)
KNOWN_ADDRESSES = 1000  # trusted addresses remembered; the one trusted longest ago is forgotten first
HELD_PART = 2  # most / 2 connections may be held: as many remain for the calls of those who hold them
MARK_TRUSTED = "mark_trusted"  # in the state of a request's scope
LOOPBACK = (ip_network("127.0.0.0/8"), ip_network("::1/128"))

Network = IPv4Network | IPv6Network
Admission = Literal["admitted", "full", "refused"]


@dataclass(eq=False)
class LimitedConnection:
    """Connection as the limiter sees it.

    is_evictable: returns whether no complete request is in progress. abort: closes it at once.
    """

    host: str
    is_evictable: Callable[[], bool]
    abort: Callable[[], None]
    trusted: bool = False
    held: bool = field(init=False, default=False)  # its answer stays open
    exempt: bool = field(init=False, default=False)  # from the limit of one address; `admit` sets it
    address: str = field(init=False)

    def __post_init__(self) -> None:
        self.address = caller_address(self.host)


class ConnectionLimiter:
    """Limiter of a port's connections.

    most: connections at once. of_address: connections of one address, except loopback and `exempt` networks; 0: no
    limit. kept: part of `most` that is reserved for trusted callers and their addresses.
    """

    def __init__(
        self, most: int = MOST, of_address: int = MOST_OF_ADDRESS, kept: int | None = None, exempt: Iterable[str] = ()
    ) -> None:
        self.most, self.of_address = most, of_address
        self.kept = most // RESERVED_PART if kept is None else kept
        self._exempt: tuple[Network, ...] = (*LOOPBACK, *(ip_network(one) for one in exempt))
        self._connections: dict[LimitedConnection, None] = {}  # admitted ones, in the order in which they came
        self._full_answers: set[LimitedConnection] = set()
        self._of: Counter[str] = Counter()
        self._held: Counter[str] = Counter()
        self._held_in_all = 0
        self._known: OrderedDict[str, None] = OrderedDict()

    def admit(self, connection: LimitedConnection) -> Admission:
        """Admits a new connection; full: to be answered with 503; refused: closed unanswered.

        Another connection may be closed to make room.
        """
        connection.exempt = _is_in(connection.host, self._exempt)
        if self._make_room(connection):
            self._connections[connection] = None
            self._of[connection.address] += 1
            return "admitted"
        if len(self._full_answers) * FULL_ANSWERS_PART >= self.most:
            return "refused"
        self._full_answers.add(connection)
        return "full"

    def release(self, connection: LimitedConnection) -> None:
        """Forgets a closed connection; a second call changes nothing."""
        self._full_answers.discard(connection)
        if connection in self._connections:
            del self._connections[connection]
            self._held_in_all -= connection.held
            self._held[connection.address] -= connection.held
            if not self._held[connection.address]:
                del self._held[connection.address]
            self._of[connection.address] -= 1
            if not self._of[connection.address]:
                del self._of[connection.address]

    def may_hold(self, connection: LimitedConnection) -> bool:
        """Tells whether a further connection may be held open, of all and of this address."""
        limited = self.of_address and not connection.exempt
        if limited and self._held[connection.address] * HELD_PART >= self.of_address:
            return False
        return self._held_in_all * HELD_PART < self.most

    def hold(self, connection: LimitedConnection) -> None:
        """Counts a connection as held, until it is released."""
        connection.held = True
        self._held_in_all += 1
        self._held[connection.address] += 1

    def mark_trusted(self, connection: LimitedConnection) -> None:
        """Marks a connection whose caller has shown a valid credential."""
        connection.trusted = True
        if not connection.exempt:  # behind a proxy everybody has the same address
            self._known.pop(connection.address, None)
            self._known[connection.address] = None
            if len(self._known) > KNOWN_ADDRESSES:
                self._known.popitem(last=False)

    def _make_room(self, connection: LimitedConnection) -> bool:
        full = self.of_address and not connection.exempt and self._of[connection.address] >= self.of_address
        if full and not self._evict(lambda other: other.address == connection.address):
            return False
        if len(self._connections) < self.most - self.kept:
            return True
        strangers = sum(not self._is_known(other) for other in self._connections)
        if not self._is_known(connection) and strangers >= self.most - self.kept:
            return self._evict(lambda other: not self._is_known(other))
        return len(self._connections) < self.most or self._evict()

    def _evict(self, chosen: Callable[[LimitedConnection], bool] = lambda _: True) -> bool:
        """Closes the oldest connection that may be closed; returns whether there was one."""
        for connection in self._connections:
            if not connection.trusted and chosen(connection) and connection.is_evictable():
                self.release(connection)
                connection.abort()
                return True
        return False

    def _is_known(self, connection: LimitedConnection) -> bool:
        return connection.trusted or connection.address in self._known


@lru_cache(maxsize=4096)  # a silo calls from one address
def _is_in(host: str, networks: tuple[Network, ...]) -> bool:
    """Tells whether a host, or a socket of this machine, is in the networks."""
    try:
        address = ip_address(host)
    except ValueError:
        return True
    return any(address in network for network in networks)


def mark_trusted(scope: Scope) -> None:
    """Marks the connection of a request as trusted, where the server has a limiter."""
    if (trusted := scope.get("state", {}).get(MARK_TRUSTED)) is not None:
        trusted()
