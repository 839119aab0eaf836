"""What arrived and what was sent -> pairs, and what is left over on either side."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from audit.evidence import Sent
from client_service.boundary.crossings import Attempt
from shared.schemas import ArrivalOut

Source = Literal["ledger", "probes"]
SUCCESS = 300  # the first HTTP status that is none
LEAST_REFUSED = 400  # the HTTP status from which on an answer is a refusal


@dataclass(frozen=True)
class Sending:
    """One body that left, as its sender tells it. `status` is None where it heard of no answer."""

    source: Source
    call: str
    run: str | None
    round: int | None
    bytes: int
    sha256: str
    status: int | None

    @property
    def accepted(self) -> bool:
        return self.status is not None and self.status < SUCCESS


@dataclass(frozen=True)
class Matched:
    """`outside`: arrived, and sent by nobody; `unseen`: said to be accepted, and never arrived."""

    pairs: tuple[tuple[ArrivalOut, Sending], ...]
    outside: tuple[ArrivalOut, ...]
    unseen: tuple[Sending, ...]
    lost: tuple[Sending, ...]

    def refused(self, source: Source) -> list[ArrivalOut]:
        return [arrival for arrival, sending in self.pairs if sending.source == source and refused(arrival)]


def refused(arrival: ArrivalOut) -> bool:
    return arrival.status >= LEAST_REFUSED


def from_ledger(attempts: Iterable[Attempt]) -> list[Sending]:
    return [
        Sending("ledger", one.call, one.run, one.round, one.bytes, one.sha256, one.status)
        for one in attempts
        if one.call in ("join", "update")
    ]


def from_probes(sent: Iterable[Sent]) -> list[Sending]:
    """All of them are meant to be refused: one that was accepted accounts for nothing."""
    told = [Sending("probes", one.call, one.run, one.round, one.bytes, one.sha256, one.status) for one in sent]
    return [one for one in told if not one.accepted]


ArrivalKey = Callable[[ArrivalOut], Hashable | None]
SendingKey = Callable[[Sending], Hashable | None]


def match(arrivals: Sequence[ArrivalOut], sendings: Sequence[Sending]) -> Matched:
    """Pair each arrival of one client with one of its sendings, those that agree most first.

    A body that was refused before it was read, or in the middle, arrives with fewer bytes than were sent.
    """
    # What was heard of first: a sending without an answer may be any of its repetitions.
    left, unsaid = list(arrivals), sorted(sendings, key=lambda one: one.status is None)
    pairs: list[tuple[ArrivalOut, Sending]] = []
    for of_arrival, of_sending in (
        (_exactly, _exactly_sent),
        (_accepted, _unanswered),
        (_cut, _cut_sent),
        (_cut_unheard, _cut_unanswered),
    ):
        found, left, unsaid = _pair(left, unsaid, of_arrival, of_sending)
        pairs += found
    ours = [one for one in unsaid if one.source == "ledger"]
    unseen, lost = [one for one in ours if one.accepted], [one for one in ours if not one.accepted]
    return Matched(tuple(pairs), tuple(left), tuple(unseen), tuple(lost))


def _exactly(one: ArrivalOut) -> Hashable:
    return one.call, one.run, one.round, one.size, one.digest, refused(one)


def _exactly_sent(one: Sending) -> Hashable:
    return one.call, one.run, one.round, one.bytes, one.sha256, not one.accepted


def _accepted(one: ArrivalOut) -> Hashable | None:
    """Accepted, though its answer was lost on the way back."""
    return None if refused(one) else (one.call, one.run, one.round, one.size, one.digest)


def _unanswered(one: Sending) -> Hashable | None:
    said = one.source == "ledger" and not one.accepted
    return (one.call, one.run, one.round, one.bytes, one.sha256) if said else None


def _cut(one: ArrivalOut) -> Hashable | None:
    return (one.call, one.run, one.round, one.status) if refused(one) else None


def _cut_sent(one: Sending) -> Hashable | None:
    return None if one.status is None else (one.call, one.run, one.round, one.status)


def _cut_unheard(one: ArrivalOut) -> Hashable | None:
    return (one.call, one.run, one.round) if refused(one) else None


def _cut_unanswered(one: Sending) -> Hashable | None:
    return (one.call, one.run, one.round) if one.status is None else None


def _pair(
    arrivals: list[ArrivalOut], sendings: list[Sending], of_arrival: ArrivalKey, of_sending: SendingKey
) -> tuple[list[tuple[ArrivalOut, Sending]], list[ArrivalOut], list[Sending]]:
    """The pairs with equal keys, and the rest of both. None is no key."""
    waiting: defaultdict[Hashable, deque[int]] = defaultdict(deque)
    for place, sending in enumerate(sendings):
        if (key := of_sending(sending)) is not None:
            waiting[key].append(place)
    pairs, left, taken = [], [], set()
    for arrival in arrivals:
        key = of_arrival(arrival)
        places = waiting.get(key, deque()) if key is not None else deque()
        if places and _within(arrival, sendings[places[0]]):
            taken.add(places[0])
            pairs.append((arrival, sendings[places.popleft()]))
        else:
            left.append(arrival)
    return pairs, left, [one for place, one in enumerate(sendings) if place not in taken]


def _within(arrival: ArrivalOut, sending: Sending) -> bool:
    """The very body, or one that was cut short."""
    return arrival.digest == sending.sha256 or arrival.size < sending.bytes
