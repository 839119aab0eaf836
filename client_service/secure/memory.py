"""What this client must never forget of its secure rounds <-> an append-only file in its state directory.

It holds no secret: in which rounds it has begun an exchange, and on which terms; what the rounds began with; whose sums
it has helped to uncover; whose keys it has trusted on first use. A round's secrets are forgotten, this is not: with a
second exchange in one round, or a sum of other members from the same start, an aggregator could subtract two sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from client_service.boundary.ledger import Ledger
from shared.errors import DataError, PrivacyError
from shared.secure.membership import MemberSum, describe_exposed, find_exposed
from shared.secure.messages import Roster, Terms

NAME = "secure_rounds.jsonl"  # in the state directory


class RoundMemory:
    """Of one client. Every method that remembers is durable when it returns."""

    def __init__(self, ledger: Ledger) -> None:
        """ledger: of this alone. DataError for a damaged file: without it a client could be made to repeat itself."""
        self._ledger = ledger
        self._ledger.verify()
        self._thresholds: dict[tuple[str, str], int] = {}
        self._begun: set[tuple[str, str, int]] = set()
        self._starts: dict[tuple[str, str, int], str] = {}
        self._sums: dict[tuple[str, str], dict[MemberSum, None]] = {}  # different ones, in the order of their rounds
        self._excused: dict[tuple[str, str], set[str]] = {}
        self._members_of_start: dict[str, frozenset[str]] = {}
        self.pinned: dict[str, str] = {}
        for entry in self._ledger.entries():
            self._take(entry)

    def _take(self, entry: Mapping[str, Any]) -> None:
        """Bring what is in memory up to an entry."""
        try:
            {"exchange": self._take_exchange, "start": self._take_start, "sum": self._take_sum, "pin": self._take_pin}[
                entry["kind"]
            ](entry)
        except (KeyError, TypeError, ValueError):
            raise DataError(f"{NAME}: expected entries as this client writes them, got another") from None

    def _take_exchange(self, entry: Mapping[str, Any]) -> None:
        self._begun.add((entry["aggregator"], entry["run"], entry["round"]))
        self._thresholds.setdefault((entry["aggregator"], entry["run"]), entry["threshold"])

    def _take_start(self, entry: Mapping[str, Any]) -> None:
        self._starts[entry["aggregator"], entry["run"], entry["round"]] = entry["digest"]

    def _take_sum(self, entry: Mapping[str, Any]) -> None:
        members, run = frozenset(entry["members"]), (entry["aggregator"], entry["run"])
        self._sums.setdefault(run, {})[MemberSum(members, frozenset(entry["bearing"]))] = None
        self._excused.setdefault(run, set()).update(entry["proven"])
        self._members_of_start.setdefault(entry["start"], members)

    def _take_pin(self, entry: Mapping[str, Any]) -> None:
        self.pinned[entry["member"]] = entry["key"]

    def _append(self, kind: str, **fields: Any) -> None:
        self._ledger.append(kind, seal=True, **fields)
        self._take({"kind": kind, **fields})

    def pin(self, member: str, key: str) -> None:
        """Trust this key from now on. `member`: a client's name, or "" for the aggregator."""
        self._append("pin", member=member, key=key)

    def remember_start(self, aggregator: str, run: str, number: int, digest: str) -> None:
        """What round `number` of a run begins with, once: a later word about it changes nothing."""
        if (aggregator, run, number) not in self._starts:
            self._append("start", aggregator=aggregator, run=run, round=number, digest=digest)

    def start_of(self, aggregator: str, run: str, number: int) -> str:
        """PrivacyError for a round of whose beginning this client was not told."""
        try:
            return self._starts[aggregator, run, number]
        except KeyError:
            raise PrivacyError(f"expected to know what round {number} of {run} began with, got no word of it") from None

    def has_begun(self, terms: Terms) -> bool:
        """Has this client made keys for this round before, on whatever terms?"""
        return (terms.common.aggregator, terms.run, terms.round) in self._begun

    def remember_exchange(self, terms: Terms) -> None:
        """Once: the round is begun, and its run has this threshold."""
        if not self.has_begun(terms):
            self._append(
                "exchange",
                aggregator=terms.common.aggregator,
                run=terms.run,
                round=terms.round,
                threshold=terms.threshold,
            )

    def require_pinned_threshold(self, terms: Terms) -> None:
        """PrivacyError for another threshold than the run's first round had."""
        pinned = self._thresholds.get((terms.common.aggregator, terms.run), terms.threshold)
        if terms.threshold != pinned:
            words = f"expected the threshold that {terms.run} was begun with, {pinned}"
            raise PrivacyError(f"{words}, got {terms.threshold}")

    def require_hidden(self, roster: Roster, members: Iterable[str], proven: Iterable[str]) -> None:
        """PrivacyError for a sum whose difference from earlier ones would tell one client's update.

        `proven`: who was put out of the round because it cheated; its earlier sums are its own loss.
        """
        terms, new = roster.terms, member_sum(roster, members)
        earlier = self._members_of_start.get(terms.common.start, new.members)
        if earlier != new.members:
            words = f"expected the members that an earlier sum from this start had ({len(earlier)}), got other ones"
            raise PrivacyError(f"{words}: a run with other members needs another seed")
        run = (terms.common.aggregator, terms.run)
        if exposed := find_exposed([*self._sums.get(run, ()), new], {*proven, *self._excused.get(run, ())}):
            raise PrivacyError(describe_exposed(exposed, terms.run))

    def remember_sum(self, roster: Roster, members: Iterable[str], proven: Iterable[str]) -> None:
        """That this client has agreed to uncover the sum of these members; once for each start."""
        terms, new = roster.terms, member_sum(roster, members)
        common = terms.common
        if common.start in self._members_of_start and new in self._sums.get((common.aggregator, terms.run), ()):
            return
        self._append(
            "sum",
            aggregator=common.aggregator,
            run=terms.run,
            round=terms.round,
            start=common.start,
            method=common.method,
            seed=common.seed,
            members=sorted(new.members),
            bearing=sorted(new.bearing),
            proven=sorted(proven),
        )


def member_sum(roster: Roster, members: Iterable[str]) -> MemberSum:
    """The members of a round's sum, and who of them has said that a change of itself alone may be told."""
    keys, chosen = roster.keys, frozenset(members)
    word = roster.terms.common.changing_members
    bearing = (name for name in chosen if keys[name].noised or (word and keys[name].changing_members))
    return MemberSum(chosen, frozenset(bearing))
