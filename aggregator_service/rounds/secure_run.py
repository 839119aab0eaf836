"""What a secure run is held on in all of its rounds, and the phases of each of them. Pure.

The clients hold the aggregator to its pledge, each by its own memory. The aggregator checks the same beforehand, so
that a run ends with a reason that its operator can act on, and not with clients who refuse.

A client trains before it sends its keys, so the first phase has most of the round's time: who trains too slowly is left
out before anybody shares a mask with it, and nothing has to be restored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Set

from pydantic import Field

from shared.errors import RoundClosedError
from shared.message import Message
from shared.method.declaration import TRAINING, Declaration
from shared.protocol.schemas import ClientName, RunIn
from shared.protocol.secure import server
from shared.protocol.secure.common import describe_few_parts, describe_unlike_lists, digest_anchor, digest_method
from shared.protocol.secure.fixed_point import MOST_CLIENTS
from shared.protocol.secure.membership import (
    MemberSum,
    Stamps,
    adding_stamps_of,
    describe_exposed,
    find_basis_objection,
    find_exposed,
    stamps_of,
)
from shared.protocol.secure.messages import CommonTerms, Hex32, Names, PublicKeys, RoundTerms, least_threshold
from shared.protocol.secure.server import Phase, SecureRound


class SumRecord(Message):
    """One set of members whose sum was uncovered in this run; `bearing`: see `MemberSum`."""

    members: Names
    bearing: Names


class BasisPledge(Message):
    """Of a basis run. least: the number of silos by whose data two sums must differ at least, if they do; earlier, own:
    what the members of each sum have signed of their data, in other runs and in this one; earlier_adding, adding: the
    same of runs of this part, and of those members alone that have added more than zeros."""

    least: int
    earlier: tuple[Stamps, ...] = ()
    own: tuple[Stamps, ...] = ()
    earlier_adding: tuple[Stamps, ...] = ()
    adding: tuple[Stamps, ...] = ()


class Pledge(Message):
    """Of one run. Kept with it.

    aggregator: the key of this service; start: the digest of what the current round, or the next one, begins with;
    threshold: fixed when the first round opens; sums: different ones, in the order of their rounds; proven: who was put
    out because it cheats; earlier: the members of another run's sum from this start; basis: of a basis run alone.
    """

    declaration: Declaration
    aggregator: Hex32
    start: Hex32
    threshold: int | None = None
    sums: tuple[SumRecord, ...] = ()
    proven: tuple[ClientName, ...] = ()
    earlier: Names | None = None
    basis: BasisPledge | None = Field(None, exclude_if=lambda basis: basis is None)


def open_exchange(pledge: Pledge, request: RunIn, run: str, number: int, clients: int) -> tuple[Pledge, SecureRound]:
    """A round for so many clients, as many as the sum can hold at most; the first one fixes the run's threshold."""
    threshold = pledge.threshold or _first_threshold(request, min(clients, MOST_CLIENTS))
    fixed = pledge.model_copy(update={"threshold": threshold})
    common = CommonTerms(
        aggregator=pledge.aggregator,
        start=pledge.start,
        method=digest_method(request.method),
        seed=request.seed,
        rounds=request.rounds,
        anchor=digest_anchor(request.method, seed=request.seed, number=number),
        changing_members=request.changing_members,
    )
    terms = RoundTerms(run=run, round=number, threshold=threshold, declaration=pledge.declaration, common=common)
    return fixed, SecureRound(terms=terms)


def _first_threshold(request: RunIn, clients: int) -> int:
    """Of a run's first round. Of a noised basis run it is the quorum, by default everybody: each client's part of the
    noise is the smaller, the more parts every sum has that can be uncovered."""
    least = least_threshold(clients)
    if request.part == TRAINING or request.method.basis.epsilon is None:
        return least
    return max(least, min(request.quorum or clients, clients))


def select_awaited(pledge: Pledge, enrolled: Set[str], *, changing_members: bool) -> Set[str]:
    """Whom a round waits for. After the first sum these are its members, and who bears a change of itself alone: who
    joins later takes part from the next run on, unless the operator lets members change."""
    if not pledge.sums or changing_members:
        return enrolled
    bearing = {name for one in pledge.sums for name in one.bearing}
    return enrolled & {*pledge.sums[-1].members, *bearing}


def require_permitted_member(pledge: Pledge, message: PublicKeys) -> None:
    """RoundClosedError for a client whose joining alone would tell its update, and that does not bear that."""
    known = not pledge.sums or message.client in pledge.sums[-1].members
    if not (known or _accepts_member_change(message)):
        words = "expected members of the round before, or who bears a change of its membership alone"
        raise RoundClosedError(f"{words}: {message.run} goes on without you, the next run need not")


def find_objection(pledge: Pledge, exchange: SecureRound) -> str | None:
    """Why the sum of those who are still in the round must not be uncovered; None where it may."""
    new = _member_sum(exchange, set(exchange.collected(exchange.phase)) - exchange.expelled)
    if (lists := describe_unlike_lists(exchange.keys[name] for name in new.members)) is not None:
        return lists
    if (basis := pledge.basis) is not None:
        if (few := describe_few_parts([exchange.keys[name] for name in new.members], basis.least)) is not None:
            return few
        stamps = stamps_of(exchange.keys, new.members)
        if (objection := find_basis_objection([*basis.earlier, *basis.own], stamps, basis.least)) is not None:
            return objection
        adding = adding_stamps_of(exchange.keys, new.members)
        if (objection := find_basis_objection([*basis.earlier_adding, *basis.adding], adding, basis.least)) is not None:
            return objection
    if pledge.earlier is not None and frozenset(pledge.earlier) != new.members:
        words = f"an earlier run from this start was summed over {', '.join(pledge.earlier)}"
        return f"{words}: with other members ({', '.join(sorted(new.members))}) start a run with another seed"
    sums = [*(MemberSum(frozenset(one.members), frozenset(one.bearing)) for one in pledge.sums), new]
    exposed = find_exposed(sums, {*pledge.proven, *exchange.expelled})
    return describe_exposed(exposed, exchange.terms.run) if exposed else None


def record_stamps(pledge: Pledge, exchange: SecureRound) -> Pledge:
    """The pledge once clients are asked to help with the sum of these survivors: from now on it may be known."""
    if pledge.basis is None:
        return pledge
    stamps = stamps_of(exchange.keys, exchange.survivors)
    adding = adding_stamps_of(exchange.keys, exchange.survivors)
    basis = pledge.basis
    changes = {
        "own": basis.own if stamps in basis.own else (*basis.own, stamps),
        "adding": basis.adding if adding in basis.adding else (*basis.adding, adding),
    }
    return pledge.model_copy(update={"basis": basis.model_copy(update=changes)})


def record_sum(pledge: Pledge, exchange: SecureRound) -> Pledge:
    """The pledge once the sum of a round is known."""
    new = _member_sum(exchange, exchange.survivors)
    summed = SumRecord(members=tuple(sorted(new.members)), bearing=tuple(sorted(new.bearing)))
    sums = pledge.sums if summed in pledge.sums else (*pledge.sums, summed)
    proven = tuple(sorted({*pledge.proven, *exchange.expelled}))
    return pledge.model_copy(update={"sums": sums, "proven": proven})


def _member_sum(exchange: SecureRound, members: Collection[str]) -> MemberSum:
    bearing = (name for name in members if _accepts_member_change(exchange.keys[name]))
    return MemberSum(frozenset(members), frozenset(bearing))


def _accepts_member_change(message: PublicKeys) -> bool:
    return message.noised or (message.common.changing_members and message.changing_members)


PARTS: Mapping[Phase, float] = {
    "keys": 0.7,
    "shares": 0.05,
    "checks": 0.05,
    "masked": 0.1,
    "consents": 0.05,
    "answers": 0.05,
}
"""Of the round's deadline, each counted from its own beginning."""


def expected_clients(state: SecureRound, awaited: Collection[str]) -> tuple[str, ...]:
    """Whom the current phase still waits for, sorted. As many answers as the threshold are enough."""
    if state.phase == "answers" and server.count_present(state) >= state.terms.threshold:
        return ()
    if state.phase != "keys":
        return state.missing
    full = least_threshold(len(state.keys) + 1) > state.terms.threshold
    return () if full else tuple(sorted(set(awaited) - state.keys.keys()))


def needed_messages(state: SecureRound, quorum: int) -> int:
    """Messages without which the current phase cannot close. The quorum is one of updates: what comes after them needs
    the threshold alone."""
    threshold = state.terms.threshold
    return threshold if state.phase in ("consents", "answers") else max(threshold, quorum)


def describe_shortage(state: SecureRound, awaited: Collection[str], quorum: int) -> str:
    """Why a phase could not close, for the operator."""
    missing = ", ".join(expected_clients(state, awaited)) or "nobody"
    counts = f"{server.count_present(state)} of {needed_messages(state, quorum)} clients"
    return f"round {state.terms.round}: {counts} at the deadline of its phase {state.phase}, missing {missing}"


def is_active(state: SecureRound, client: str, awaited: Collection[str]) -> bool:
    """Is this client still part of the round?"""
    return client in expected_clients(state, awaited) or client in state.collected(state.phase)
