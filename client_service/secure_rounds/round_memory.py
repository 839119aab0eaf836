"""Memory of a client's secure rounds, an append-only file in its state directory.

It holds no secret: rounds in which an exchange began, and their terms; digests of the rounds' starts; sums that it
helped to unmask, and in basis runs the stamps that members signed for their data; keys trusted on first use. The
secrets of a round are deleted, this file never: with a second exchange in one round, or a sum of other members from
the same start, an aggregator could subtract two sums.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from client_service.boundary.ledger import Ledger
from shared.errors import DataError, PrivacyError
from shared.protocol.secure.common import describe_few_parts
from shared.protocol.secure.membership import (
    LEAST_SILOS,
    MemberSum,
    Stamps,
    describe_exposed,
    find_basis_objection,
    find_exposed,
    find_list_objection,
    list_adding_stamps,
    list_stamps,
    needs_stamps,
)
from shared.protocol.secure.messages import Roster, RoundTerms
from shared.sums import find_declared, is_sum

NAME = "secure_rounds.jsonl"  # in the state directory
PINNED = ("threshold", "method", "seed", "rounds")  # of a run's terms: the same in all of its rounds


class RoundMemory:
    """Memory of one client's secure rounds; each method that remembers writes durably."""

    def __init__(self, ledger: Ledger) -> None:
        """Reads the memory from its own ledger.

        Raises DataError for a damaged file: without it a client could be made to repeat a round.
        """
        self._ledger = ledger
        self._ledger.verify()
        self._pinned: dict[tuple[str, str], Mapping[str, Any]] = {}
        self._begun: set[tuple[str, str, int]] = set()
        self._starts: dict[tuple[str, str, int], str] = {}
        self._sums: dict[tuple[str, str], dict[MemberSum, None]] = {}  # different ones, in the order of their rounds
        self._summed: set[tuple[str, str, int]] = set()
        self._excused: dict[tuple[str, str], set[str]] = {}
        self._members_of_start: dict[str, frozenset[str]] = {}
        self._basis_sums: list[Stamps] = []  # of all runs of all aggregators: they follow from the silos' data alone
        self._adding_sums: list[tuple[str, Stamps]] = []  # of each, its word and who has added more than zeros
        self._listed_sums: list[tuple[Stamps, str]] = []  # with the list of common items that each was over
        self.pinned: dict[str, str] = {}
        self.agreed: set[str] = set()  # of these, whom the silo knew when it joined, or has consented to since
        for entry in self._ledger.entries():
            self._apply(entry)

    def _apply(self, entry: Mapping[str, Any]) -> None:
        """Applies an entry to the state in memory."""
        try:
            take = {
                "exchange": self._apply_exchange,
                "start": self._apply_start,
                "sum": self._apply_sum,
                "pin": self._apply_pin,
                "members": self._apply_members,
            }
            take[entry["kind"]](entry)
        except (KeyError, TypeError, ValueError):
            raise DataError(f"{NAME}: expected entries as this client writes them, got another") from None

    def _apply_exchange(self, entry: Mapping[str, Any]) -> None:
        self._begun.add((entry["aggregator"], entry["run"], entry["round"]))
        pinned = {name: entry[name] for name in PINNED if name in entry}  # earlier versions kept the threshold alone
        self._pinned.setdefault((entry["aggregator"], entry["run"]), pinned)

    def _apply_start(self, entry: Mapping[str, Any]) -> None:
        self._starts[entry["aggregator"], entry["run"], entry["round"]] = entry["digest"]

    def _apply_sum(self, entry: Mapping[str, Any]) -> None:
        members, run = frozenset(entry["members"]), (entry["aggregator"], entry["run"])
        self._sums.setdefault(run, {})[MemberSum(members, frozenset(entry["bearing"]))] = None
        self._excused.setdefault(run, set()).update(entry["proven"])
        if "stamps" in entry:
            self._basis_sums += [dict(entry["stamps"])] if entry["stamps"] else []
            if "word" in entry:
                self._adding_sums.append((entry["word"], dict(entry.get("adding", entry["stamps"]))))
            if entry["stamps"] and entry.get("listed"):
                self._listed_sums.append((dict(entry["stamps"]), entry["listed"]))
        else:
            self._members_of_start.setdefault(entry["start"], members)
        self._summed.add((*run, entry["round"]))

    def _apply_pin(self, entry: Mapping[str, Any]) -> None:
        self.pinned[entry["member"]] = entry["key"]
        self.agreed.add(entry["member"])

    def _apply_members(self, entry: Mapping[str, Any]) -> None:
        self.pinned |= dict(entry["keys"])
        self.agreed |= set(entry["agreed"])

    def _append(self, kind: str, **fields: Any) -> None:
        self._ledger.append(kind, durable_head=True, **fields)
        self._apply({"kind": kind, **fields})

    def pin(self, member: str, key: str) -> None:
        """Trusts this key from now on. `member`: a client's name, or "" for the aggregator."""
        self._append("pin", member=member, key=key)

    def pin_members(self, keys: Mapping[str, str], agreed: Collection[str]) -> None:
        """Trusts these clients' keys from now on, all or none.

        `agreed`: those to whom the silo has consented.
        """
        self._append("members", keys=dict(sorted(keys.items())), agreed=sorted(agreed))

    def remember_start(self, aggregator: str, run: str, number: int, digest: str) -> None:
        """Remembers the digest of a round's start, once.

        Raises PrivacyError for another digest later: this client would train from one start and report the other.
        """
        said = self._starts.get((aggregator, run, number))
        if said is None:
            self._append("start", aggregator=aggregator, run=run, round=number, digest=digest)
        elif said != digest:
            raise PrivacyError(f"expected the start of round {number} of {run} as it was received first, got another")

    def start_of(self, aggregator: str, run: str, number: int) -> str:
        """Returns the digest of a round's start; raises PrivacyError if none was received."""
        try:
            return self._starts[aggregator, run, number]
        except KeyError:
            raise PrivacyError(f"expected the start of round {number} of {run} to be known, got none") from None

    def has_begun(self, terms: RoundTerms) -> bool:
        """Tells whether this client has made keys for this round before, on any terms."""
        return (terms.common.aggregator, terms.run, terms.round) in self._begun

    def remember_exchange(self, terms: RoundTerms) -> None:
        """Remembers once that the round has begun, with its run's threshold and settings."""
        if not self.has_begun(terms):
            place = {"aggregator": terms.common.aggregator, "run": terms.run, "round": terms.round}
            self._append("exchange", **place, **_pinned_terms(terms))

    def require_pinned_terms(self, terms: RoundTerms) -> None:
        """Raises PrivacyError if threshold or settings differ from the run's first round."""
        pinned = self._pinned.get((terms.common.aggregator, terms.run), {})
        now = _pinned_terms(terms)
        if differing := [name for name, value in pinned.items() if now[name] != value]:
            shown = ", ".join(name if name == "method" else f"{name} {pinned[name]}" for name in differing)
            got = ", ".join("another" if name == "method" else str(now[name]) for name in differing)
            raise PrivacyError(f"expected the terms with which {terms.run} began, {shown}, got {got}")

    def require_every_sum(self, terms: RoundTerms) -> None:
        """Raises PrivacyError unless this client helped with the sum of each earlier round.

        Only with all sums can it judge what the next one reveals beside them. Of the four sums of three out of four
        clients each client is in three, and those reveal no update; all four together reveal every update.
        """
        place = terms.common.aggregator, terms.run
        missed = (number for number in range(1, terms.round) if (*place, number) not in self._summed)
        if (first := next(missed, None)) is not None:
            words = f"expected to have helped with the sum of each earlier round of {terms.run}, not with round {first}"
            raise PrivacyError(f"{words}: this client takes part again in the next run")

    def require_renewable(self, roster: Roster, members: Collection[str], least: int, listed: str = "") -> None:
        """Raises PrivacyError for a basis sum that would reveal the data of too few silos.

        That is fewer than `least`, beside the sums that this client was in, as the members have signed their data.
        listed: digest of the list of common items, where the silos have summed one, which changes with the silos'
        data alone.
        """
        if needs_stamps(roster.terms.declaration):
            stamps = list_stamps(roster.keys, members)
            objection = describe_few_parts([roster.keys[name] for name in members], least)
            objection = objection or find_basis_objection(self._basis_sums, stamps, least)
            word, adding = roster.terms.declaration.strategy, list_adding_stamps(roster.keys, members)
            alike = [sums for known, sums in self._adding_sums if known == word]
            objection = objection or find_basis_objection(alike, adding, least)
            if objection is None and listed:
                objection = find_list_objection(self._listed_sums, stamps, listed, least)
            if objection is not None:
                raise PrivacyError(objection)

    def require_safe_sum(
        self,
        roster: Roster,
        members: Collection[str],
        proven: Iterable[str],
        least: int = LEAST_SILOS,
        listed: str = "",
    ) -> None:
        """Raises PrivacyError for a sum whose difference from earlier ones reveals one client's update.

        `proven`: clients excluded from the round for cheating; exposing their earlier sums is their own loss.
        `least`, `listed`: see `require_renewable`.
        """
        self.require_renewable(roster, members, least, listed)
        terms, new = roster.terms, member_sum(roster, members)
        known = {} if is_sum(terms.declaration) else self._members_of_start
        earlier = known.get(terms.common.start, new.members)
        if earlier != new.members:
            words = f"expected the members that an earlier sum from this start had ({len(earlier)}), got other ones"
            raise PrivacyError(f"{words}: a run with other members needs another seed")
        run = (terms.common.aggregator, terms.run)
        if is_sum(terms.declaration) and find_declared(terms.declaration).keeps_members:
            first = next(iter(self._sums.get(run, ())), new).members
            if first != new.members:
                words = f"expected the {len(first)} members of the first sum of {terms.run} in each of its sums"
                raise PrivacyError(f"{words}, got {len(new.members)}: what a silo hides of its own needs its part")
        if exposed := find_exposed([*self._sums.get(run, ()), new], {*proven, *self._excused.get(run, ())}):
            raise PrivacyError(describe_exposed(exposed, terms.run))

    def remember_sum(self, roster: Roster, members: Iterable[str], proven: Iterable[str], listed: str = "") -> None:
        """Remembers once a round that this client agreed to unmask the sum of these members.

        listed: digest of the list that the sum was over.
        """
        terms, new = roster.terms, member_sum(roster, members)
        common = terms.common
        if (common.aggregator, terms.run, terms.round) in self._summed:
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
            **_stamps_entry(roster, new.members),
            **({"listed": listed} if listed else {}),
        )


def _stamps_entry(roster: Roster, members: Collection[str]) -> dict[str, Stamps | str]:
    """Returns the stamps in the entry of a basis sum; none of a noised one."""
    declaration = roster.terms.declaration
    if not is_sum(declaration):
        return {}
    if not needs_stamps(declaration):
        return {"stamps": {}}
    stamps, adding = list_stamps(roster.keys, members), list_adding_stamps(roster.keys, members)
    return {"stamps": stamps, "word": declaration.strategy, **({} if adding == stamps else {"adding": adding})}


def _pinned_terms(terms: RoundTerms) -> dict[str, Any]:
    common = terms.common
    return {"threshold": terms.threshold, "method": common.method, "seed": common.seed, "rounds": common.rounds}


def member_sum(roster: Roster, members: Iterable[str]) -> MemberSum:
    """Returns the members of a round's sum, and those whose own change may show."""
    keys, chosen = roster.keys, frozenset(members)
    word = roster.terms.common.changing_members
    bearing = (name for name in chosen if keys[name].noised or (word and keys[name].changing_members))
    return MemberSum(chosen, frozenset(bearing))
