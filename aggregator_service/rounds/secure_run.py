"""Rules of a secure run over all its rounds, and the phases of each round.

Pure functions. The clients hold the aggregator to its pledge, each by its own memory. The aggregator checks the same
beforehand, so that a run ends with a reason that its operator can act on, and not with clients that refuse.

A client trains before it sends its keys, so the first phase has most of the round's time: a slow client is left out
before others share a mask with it, and nothing has to be restored.
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
from shared.protocol.secure.graph import COLLUDERS, DROPOUTS, announce_bounds
from shared.protocol.secure.membership import (
    MemberSum,
    Stamps,
    describe_exposed,
    find_basis_objection,
    find_exposed,
    list_adding_stamps,
    list_stamps,
)
from shared.protocol.secure.messages import (
    CommonTerms,
    Hex32,
    Names,
    PublicKeys,
    RoundTerms,
    least_threshold,
)
from shared.protocol.secure.server import Phase, SecureRound


class SumRecord(Message):
    """Members of a sum that was opened in this run; for `bearing` see `MemberSum`."""

    members: Names
    bearing: Names


class BasisPledge(Message):
    """Promise to the clients of a basis run about the sums that it may open.

    least: number of silos by whose data two different sums must differ. earlier, own: signed data of the members of
    each sum, in other runs and in this one. earlier_adding, adding: the same for runs of this part, of members that
    added more than zeros.
    """

    least: int
    earlier: tuple[Stamps, ...] = ()
    own: tuple[Stamps, ...] = ()
    earlier_adding: tuple[Stamps, ...] = ()
    adding: tuple[Stamps, ...] = ()


class Pledge(Message):
    """Promise to the clients of one run, stored with it.

    aggregator: key of this service. start: digest of the parameters that the current or next round begins with.
    threshold: fixed when the first round opens. sums: different ones, in the order of their rounds. proven: clients
    excluded for cheating. earlier: members of another run's sum from this start. basis: of a basis run only.
    colluders, dropouts: shares of the members that the graph of neighbours must bear.
    """

    declaration: Declaration
    aggregator: Hex32
    start: Hex32
    threshold: int | None = None
    sums: tuple[SumRecord, ...] = ()
    proven: tuple[ClientName, ...] = ()
    earlier: Names | None = None
    basis: BasisPledge | None = Field(None, exclude_if=lambda basis: basis is None)
    colluders: float = COLLUDERS
    dropouts: float = DROPOUTS


def open_exchange(pledge: Pledge, request: RunIn, run: str, number: int, clients: int) -> tuple[Pledge, SecureRound]:
    """Opens a secure round for this many clients; the first one fixes the run's threshold."""
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
        graph=announce_bounds(min(clients, MOST_CLIENTS), colluders=pledge.colluders, dropouts=pledge.dropouts),
    )
    terms = RoundTerms(run=run, round=number, threshold=threshold, declaration=pledge.declaration, common=common)
    return fixed, SecureRound(terms=terms)


def _first_threshold(request: RunIn, clients: int) -> int:
    """Returns the threshold of a run's first round.

    In a noised basis run it is the quorum, by default all clients: the more clients must be in every sum, the less
    noise each of them has to add.
    """
    least = least_threshold(clients)
    if request.part == TRAINING or request.method.basis.epsilon is None:
        return least
    return max(least, min(request.quorum or clients, clients))


def select_awaited(pledge: Pledge, enrolled: Set[str], *, changing_members: bool) -> Set[str]:
    """Selects the clients that a round waits for.

    After the first sum these are its members, and clients that accept a change of themselves alone; others that join
    later take part from the next run on, unless the operator allows changing members.
    """
    if not pledge.sums or changing_members:
        return enrolled
    bearing = {name for one in pledge.sums for name in one.bearing}
    return enrolled & {*pledge.sums[-1].members, *bearing}


def require_permitted_member(pledge: Pledge, message: PublicKeys) -> None:
    """Raises RoundClosedError for a client whose joining would reveal its update against its will."""
    known = not pledge.sums or message.client in pledge.sums[-1].members
    if not (known or _accepts_member_change(message)):
        words = "expected a member of the round before, or a client that accepts a change of itself alone"
        raise RoundClosedError(f"{words}: {message.run} continues without you; take part in the next run")


def find_objection(pledge: Pledge, exchange: SecureRound) -> str | None:
    """Returns why the sum of the remaining clients must not be opened.

    None if it may.
    """
    new = _member_sum(exchange, set(exchange.collected(exchange.phase)) - exchange.expelled)
    if (lists := describe_unlike_lists(exchange.keys[name] for name in new.members)) is not None:
        return lists
    if (basis := pledge.basis) is not None:
        if (few := describe_few_parts([exchange.keys[name] for name in new.members], basis.least)) is not None:
            return few
        stamps = list_stamps(exchange.keys, new.members)
        if (objection := find_basis_objection([*basis.earlier, *basis.own], stamps, basis.least)) is not None:
            return objection
        adding = list_adding_stamps(exchange.keys, new.members)
        if (objection := find_basis_objection([*basis.earlier_adding, *basis.adding], adding, basis.least)) is not None:
            return objection
    if pledge.earlier is not None and frozenset(pledge.earlier) != new.members:
        words = f"an earlier run from this start was summed over {', '.join(pledge.earlier)}"
        return f"{words}: with other members ({', '.join(sorted(new.members))}) start a run with another seed"
    sums = [*(MemberSum(frozenset(one.members), frozenset(one.bearing)) for one in pledge.sums), new]
    exposed = find_exposed(sums, {*pledge.proven, *exchange.expelled})
    return describe_exposed(exposed, exchange.terms.run) if exposed else None


def record_stamps(pledge: Pledge, exchange: SecureRound) -> Pledge:
    """Returns the pledge after the request to open the sum of these survivors.

    From then on the sum may be known.
    """
    if pledge.basis is None:
        return pledge
    stamps = list_stamps(exchange.keys, exchange.survivors)
    adding = list_adding_stamps(exchange.keys, exchange.survivors)
    basis = pledge.basis
    changes = {
        "own": basis.own if stamps in basis.own else (*basis.own, stamps),
        "adding": basis.adding if adding in basis.adding else (*basis.adding, adding),
    }
    return pledge.model_copy(update={"basis": basis.model_copy(update=changes)})


def record_sum(pledge: Pledge, exchange: SecureRound) -> Pledge:
    """Returns the pledge after the sum of a round is known."""
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
"""Share of the round's deadline that each phase gets, counted from the beginning of the phase."""


def expected_clients(state: SecureRound, awaited: Collection[str]) -> tuple[str, ...]:
    """Returns the clients that the current phase waits for, sorted.

    In phase `answers` as many as restore the secrets are enough.
    """
    if state.phase == "answers" and server.can_restore(state):
        return ()
    if state.phase != "keys":
        return state.missing
    full = least_threshold(len(state.keys) + 1) > state.terms.threshold
    return () if full else tuple(sorted(set(awaited) - state.keys.keys()))


def needed_messages(state: SecureRound, quorum: int) -> int:
    """Returns the number of messages that the current phase needs to close.

    The quorum is one of updates: later phases need only the threshold.
    """
    fewest = server.fewest_present(state)
    return fewest if state.phase in ("consents", "answers") else max(fewest, quorum)


def describe_shortage(state: SecureRound, awaited: Collection[str], quorum: int) -> str:
    """Describes for the operator why a phase could not close."""
    missing = ", ".join(expected_clients(state, awaited)) or "none"
    counts = f"{server.count_present(state)} of {needed_messages(state, quorum)} clients"
    return f"round {state.terms.round}: {counts} at the deadline of its phase {state.phase}, missing {missing}"


def is_active(state: SecureRound, client: str, awaited: Collection[str]) -> bool:
    """Tells whether this client is still part of the round."""
    return client in expected_clients(state, awaited) or client in state.collected(state.phase)
