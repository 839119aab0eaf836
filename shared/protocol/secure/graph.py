"""Graph of a secure round's neighbours: drawn by all silos, verified by each.

Paper: Bell et al., "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead", CCS 2020, section 4: each client
draws its own neighbours, so that nobody can choose those of an honest one. Here: the draw follows from a number that
the client has committed to in its signed keys, and from the roster of everybody's keys; it is revealed to all, because
each client holds the members of a sum to be exactly those that it is told. The first of one order hold its
shares, and more or fewer of them mask with it: shares need more the more collude, masks the more drop out.
docs/secure-aggregation.md says what the bound is worth.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from math import exp2, inf, lgamma, log, log2
from typing import NamedTuple

import numpy as np

from shared.errors import PrivacyError, ProtocolError
from shared.protocol.schemas import GraphBounds
from shared.protocol.secure.fixed_point import MOST_CLIENTS
from shared.protocol.secure.group import BYTES
from shared.protocol.secure.keys import PROTOCOL, derive
from shared.protocol.secure.messages import GraphPlan, Roster, RoundMessage

FEWEST_MEMBERS = 64  # with fewer, everybody is everybody's neighbour
PRIVACY_BITS = 40  # a round tells more than its sum at most once in 2^40 rounds
RECOVERY_BITS = 20  # with as many drop-outs as are borne, a round fails at most once in 2^20 rounds
COLLUDERS, DROPOUTS = 1 / 3, 1 / 20  # of the members, by default; a third as on the full graph
WORD = 8  # bytes of a draw's number for one member


def announce_bounds(members: int, *, colluders: float = COLLUDERS, dropouts: float = DROPOUTS) -> GraphBounds | None:
    """Returns the bounds that a run announces; None for few members, whose graph is full."""
    return None if members < FEWEST_MEMBERS else GraphBounds(colluders=colluders, dropouts=dropouts)


@lru_cache(maxsize=256)
def plan_graph(members: int, bounds: GraphBounds) -> GraphPlan | None:
    """Finds the fewest neighbours, and the threshold of shares, that these bounds need.

    Each client draws one order of all others: the first `degree` hold its shares, the first `masks` mask with it. None
    if the full graph costs as little: few members, or bounds that no sparse graph meets.
    """
    if members < FEWEST_MEMBERS:
        return None
    dropouts, threshold = bounds.count_dropouts(members), 0
    for degree in range(2, 9 * members // 10):
        threshold = _largest_threshold(members, dropouts, degree, threshold)
        if threshold > 1 and _held_bits(members, bounds, degree, threshold) <= -PRIVACY_BITS:
            plan = GraphPlan(degree=degree, threshold=threshold, masks=1)
            numbers = range(1, min(members, MOST_CLIENTS + 1))
            plans = [plan.model_copy(update={"masks": masks}) for masks in numbers]
            bears = bisect_left(plans, True, key=lambda one: exposure_bits(members, bounds, one) <= -PRIVACY_BITS)
            if bears < len(plans):
                return plans[bears]
    return None


def _largest_threshold(members: int, dropouts: int, degree: int, fitting: int = 0) -> int:
    """Returns the largest threshold that drop-outs at random leave enough holders for.

    fitting: that of a smaller degree, which fits this one too. At most the degree: where nobody is to drop out, one
    may still be silent.
    """
    while fitting < degree and failure_bits(members, dropouts, degree, fitting + 1) <= -RECOVERY_BITS:
        fitting += 1
    return fitting


def failure_bits(members: int, dropouts: int, degree: int, threshold: int) -> float:
    """Computes log2 of a bound on drop-outs leaving too few shares of a secret.

    They are drawn at random. A dealer that stays answers with the share that it kept of its own seed, so that one more
    of its neighbours may be among the drop-outs. Of one that is a drop-out itself, the others are one fewer. A union
    bound over all dealers.
    """
    stays = log2(max(1, members - dropouts)) + _tail_bits(members - 1, dropouts, degree, degree + 2 - threshold)
    if not dropouts:
        return stays
    return _log2_sum([stays, log2(dropouts) + _tail_bits(members - 1, dropouts - 1, degree, degree + 1 - threshold)])


def exposure_bits(members: int, bounds: GraphBounds, plan: GraphPlan) -> float:
    """Computes log2 of a bound on a round telling more than its one sum.

    Either as many colluders as the threshold hold shares of one honest client, or the graph of masks of the honest
    clients, less any `dropouts` of them that the aggregator chooses after it has seen the graph, is not connected. A
    union bound over all clients, sets and, for sets of two clients or more, choices; the draws are independent and
    uniform. 0, no protection, for bounds that leave fewer than two honest clients, and for more neighbours than there
    are other members.
    """
    colluders, dropouts = bounds.count_colluders(members), bounds.count_dropouts(members)
    honest = members - colluders
    if honest - dropouts < 2 or max(plan.degree, plan.masks) >= members:  # else the sum over parts would be empty
        return 0.0
    held = _held_bits(members, bounds, plan.degree, plan.threshold)
    if held > -PRIVACY_BITS:  # the other is slow
        return held
    return _log2_sum([held, *_split_bits(members, honest, dropouts, plan.masks)])


def _held_bits(members: int, bounds: GraphBounds, degree: int, threshold: int) -> float:
    """Computes log2 of a bound on colluders holding enough shares of an honest client."""
    colluders = bounds.count_colluders(members)
    return log2(max(1, members - colluders)) + _tail_bits(members - 1, colluders, degree, threshold)


def _split_bits(members: int, honest: int, dropouts: int, masks: int) -> list[float]:
    """Lists log2 of a bound on the probability of a separate part, by its size."""
    found = [log2(honest) + _lone_bits(members, honest, dropouts, masks)]
    for size in range(2, (honest - dropouts) // 2 + 1):
        rest = honest - size - dropouts
        chosen = _log2_choose(honest, size) + _log2_choose(honest - size, dropouts)
        outward = size * _avoid_bits(members - 1, rest, masks)
        inward = rest * _avoid_bits(members - 1, size, masks)
        found.append(chosen + outward + inward)
    return found


def _lone_bits(members: int, honest: int, dropouts: int, masks: int) -> float:
    """Computes log2 of the probability that one honest client masks with `dropouts` others or fewer.

    Then the aggregator can drop all of them. Exact: it draws some of the other honest ones (hypergeometric), and each
    of the rest draws it or not (binomial). One by one over the choices, most graphs would count many times.
    """
    others, drawn, terms = honest - 1, masks / (members - 1), []
    every = _log2_choose(members - 1, masks)
    for own in range(max(0, masks - (members - 1 - others)), min(dropouts, others, masks) + 1):
        chosen = _log2_choose(others, own) + _log2_choose(members - 1 - others, masks - own) - every
        terms.append(chosen + _at_most_bits(others - own, drawn, dropouts - own))
    return _log2_sum(terms)


def _at_most_bits(tries: int, chance: float, most: int) -> float:
    """Computes log2 of the probability of at most `most` successes (binomial)."""
    if most >= tries:
        return 0.0
    if chance >= 1.0:
        return -inf
    hit, missed = log2(chance), log2(1.0 - chance)
    return _log2_sum([_log2_choose(tries, n) + n * hit + (tries - n) * missed for n in range(most + 1)])


def _avoid_bits(population: int, marked: int, draws: int) -> float:
    """Computes log2 of the probability that no draw without replacement is a marked one."""
    if population - marked < draws:
        return -inf
    return _log2_choose(population - marked, draws) - _log2_choose(population, draws)


def _tail_bits(population: int, marked: int, draws: int, least: int) -> float:
    """Computes log2 of the probability of `least` or more marked ones (hypergeometric)."""
    if least <= 0:
        return 0.0
    sizes = range(max(least, draws - (population - marked)), min(marked, draws) + 1)
    every = _log2_choose(population, draws)
    return _log2_sum(
        [_log2_choose(marked, size) + _log2_choose(population - marked, draws - size) - every for size in sizes]
    )


def _log2_choose(count: int, chosen: int) -> float:
    return _log2_factorial(count) - _log2_factorial(chosen) - _log2_factorial(count - chosen)


@cache
def _log2_factorial(count: int) -> float:
    return lgamma(count + 1) / log(2)


def _log2_sum(terms: list[float]) -> float:
    most = max(terms, default=-inf)
    return most if most == -inf else most + log2(sum(exp2(term - most) for term in terms))


def require_bounds(bounds: GraphBounds | None, colluders: float) -> None:
    """Raises PrivacyError for announced bounds that a silo's policy forbids."""
    if bounds is None or bounds.colluders >= colluders:
        return
    words = f"expected a graph of neighbours that bears {colluders:.4g} or more of its members as colluders"
    told = f"(policy.colluders), got a run that announces {bounds.colluders:.4g}"
    raise PrivacyError(f"{words} {told}: ask the operator for colluders={colluders:.4g}, or lower the policy")


def require_planned_graph(roster: Roster, colluders: float) -> None:
    """Raises PrivacyError unless the graph follows from bounds that a policy allows."""
    bounds, told = roster.terms.common.graph, roster.graph
    planned = None if bounds is None else plan_graph(len(roster.members), bounds)
    if told != planned:
        words = f"as follows from the announced bounds and {len(roster.members)} clients"
        raise PrivacyError(f"expected {_describe_plan(planned)}, {words}, got {_describe_plan(told)}")
    if told is not None:
        require_bounds(bounds, colluders)


def _describe_plan(plan: GraphPlan | None) -> str:
    if plan is None:
        return "everybody to hold shares of everybody"
    return f"a graph of degree {plan.degree}, threshold {plan.threshold} and {plan.masks} masks"


def derive_draw(secret: int, terms: RoundMessage, client: str) -> str:
    """Derives the number from which a client's neighbours follow, from its secret key for shares.

    It stays secret until the roster is fixed, so that nobody can fit a roster to it.
    """
    label = f"{PROTOCOL}\ndraw\n{terms.version}\n{terms.run}\n{terms.round}\n{client}\n"
    return derive(secret.to_bytes(BYTES), label.encode()).hex()


def commit_draw(draw: str) -> str:
    """Computes the commitment to a draw."""
    return hashlib.sha256(f"{PROTOCOL}\ncommitted draw\n".encode() + bytes.fromhex(draw)).hexdigest()


def require_draw(roster: Roster, client: str, draw: str | None) -> str:
    """Returns the draw of a client; raises ProtocolError unless its keys commit to it."""
    if draw is None or roster.keys[client].draw != commit_draw(draw):
        raise ProtocolError(f"expected the draw of neighbours that {client!r} has committed to, got another")
    return draw


def find_holders(roster: Roster, client: str, draw: str) -> tuple[str, ...]:
    """Finds the neighbours that a client has drawn, who hold shares of its secrets; sorted.

    Those with the smallest of the numbers that SHAKE-256 gives for the roster, the client and its draw.
    """
    ranked, names = np.argsort(_numbers(roster, client, draw), kind="stable"), roster.names
    return tuple(names[place] for place in sorted(ranked[: _plan(roster).degree].tolist()))


class Neighbours(NamedTuple):
    """Sharers that have shared with a client, and those that mask with it.

    dealers: with the client itself.
    """

    dealers: set[str]
    peers: set[str]


def find_neighbours(roster: Roster, own: str, sharers: Iterable[str], draws: Mapping[str, str]) -> Neighbours:
    """Finds a client's neighbours among the sharers.

    On a graph by everybody's revealed draws: an aggregator that could keep back a share could name members of a sum
    whose vectors are not in it. Raises ProtocolError for a draw that its owner has not committed to.
    """
    names = set(sharers)
    if roster.graph is None:
        return Neighbours(names, names - {own})
    drawn = {name: require_draw(roster, name, draws.get(name)) for name in sorted(names)}
    places = _find_places(roster, drawn, own)
    dealers = {name for name, place in places.items() if place < roster.graph.degree}
    peers = {name for name, place in places.items() if place < roster.graph.masks}
    if own in drawn:
        ranked = np.argsort(_numbers(roster, own, drawn[own]), kind="stable")[: roster.graph.masks].tolist()
        peers |= {roster.names[place] for place in ranked} & names
    return Neighbours({own, *dealers}, peers)


def _find_places(roster: Roster, drawn: Mapping[str, str], other: str) -> dict[str, int]:
    """Finds the place of `other` in each client's order, faster than one by one."""
    drawers = [name for name in drawn if name != other]
    if not drawers:
        return {}
    numbers, place = np.stack([_numbers(roster, name, drawn[name]) for name in drawers]), roster.points[other] - 1
    own = numbers[:, place : place + 1]
    before = np.count_nonzero(numbers < own, axis=1) + np.count_nonzero(numbers[:, :place] == own, axis=1)
    return dict(zip(drawers, before.tolist(), strict=True))


def _numbers(roster: Roster, client: str, draw: str) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    stream = hashlib.shake_256(roster.context.label("neighbours", client, draw)).digest(WORD * len(roster.members))
    numbers = np.frombuffer(bytearray(stream), dtype="<u8")
    numbers[roster.points[client] - 1] = np.iinfo(np.uint64).max  # nobody is its own neighbour
    return numbers


def _plan(roster: Roster) -> GraphPlan:
    assert roster.graph is not None
    return roster.graph
