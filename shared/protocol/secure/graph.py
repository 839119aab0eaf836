"""Graph of a secure round's neighbours: drawn by all silos, verified by each.

Paper: Bell et al., "Secure Single-Server Aggregation with (Poly)Logarithmic Overhead", CCS 2020, section 4: each client
draws its own neighbours, so that nobody can choose those of an honest one. Here: the draw follows from a number that
the client has committed to in its signed keys, and from the roster of everybody's keys; it is revealed to all, because
each client holds the members of a sum to be exactly those that it is told. docs/secure-aggregation.md says what the
bound is worth.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache, lru_cache
from math import exp2, inf, lgamma, log, log2

import numpy as np

from shared.errors import PrivacyError, ProtocolError
from shared.protocol.schemas import GraphBounds
from shared.protocol.secure.group import BYTES
from shared.protocol.secure.keys import PROTOCOL, derive
from shared.protocol.secure.messages import GraphPlan, Roster, RoundMessage, Sharers

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
    """Finds the smallest degree, and the threshold of shares, that these bounds need.

    None if the full graph costs as little: few members, or bounds that no sparse graph meets.
    """
    if members < FEWEST_MEMBERS:
        return None
    dropouts, threshold = bounds.count_dropouts(members), 0
    for degree in range(dropouts + 2, 9 * members // 10):
        threshold = _largest_threshold(members, dropouts, degree, threshold)
        plan = GraphPlan(degree=degree, threshold=threshold) if threshold > 1 else None
        if plan is not None and exposure_bits(members, bounds, plan) <= -PRIVACY_BITS:
            return plan
    return None


def _largest_threshold(members: int, dropouts: int, degree: int, fitting: int = 0) -> int:
    """Returns the largest threshold that drop-outs at random leave enough holders for.

    fitting: that of a smaller degree, which fits this one too.
    """
    while fitting < degree:
        too_many = log2(members) + _tail_bits(members - 1, dropouts, degree, degree - fitting)
        if too_many > -RECOVERY_BITS:
            break
        fitting += 1
    return fitting


def exposure_bits(members: int, bounds: GraphBounds, plan: GraphPlan) -> float:
    """Computes log2 of a bound on a round telling more than its one sum.

    Either as many colluders as the threshold hold shares of one honest client, or the graph of the honest clients,
    less any `dropouts` of them that the aggregator chooses after it has seen the graph, is not connected. A union
    bound over all clients, all sets and all choices; the draws are independent and uniform. 0, no protection, for
    bounds that leave fewer than two honest clients, and for more neighbours than there are other members.
    """
    colluders, dropouts = bounds.count_colluders(members), bounds.count_dropouts(members)
    honest = members - colluders
    if honest - dropouts < 2 or plan.degree >= members:  # else the sum over separate parts would be empty
        return 0.0
    held = log2(honest) + _tail_bits(members - 1, colluders, plan.degree, plan.threshold)
    if held > -PRIVACY_BITS:  # the usual one to fail; the other is slow
        return held
    return _log2_sum([held, *_split_bits(members, honest, dropouts, plan.degree)])


def _split_bits(members: int, honest: int, dropouts: int, degree: int) -> list[float]:
    """Lists log2 of the probability of a separate part, by its size."""
    found = []
    for size in range(1, (honest - dropouts) // 2 + 1):
        rest = honest - size - dropouts
        chosen = _log2_choose(honest, size) + _log2_choose(honest - size, dropouts)
        outward = size * _avoid_bits(members - 1, rest, degree)
        inward = rest * _avoid_bits(members - 1, size, degree)
        found.append(chosen + outward + inward)
    return found


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
    return f"a graph of degree {plan.degree} and threshold {plan.threshold}"


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
    return tuple(names[place] for place in sorted(ranked[: _degree(roster)].tolist()))


def find_dealers(roster: Roster, own: str, sharers: Sharers) -> set[str]:
    """Finds the sharers that have shared with a client, itself among them.

    On a graph by everybody's revealed draws: an aggregator that could keep back a share could name members of a sum
    whose vectors are not in it.
    """
    if roster.graph is None:
        return set(sharers.sharers)
    try:
        drawn = {name: require_draw(roster, name, sharers.draws.get(name)) for name in sharers.sharers}
    except ProtocolError as error:
        raise PrivacyError(str(error)) from None
    return {own, *_find_drawers(roster, drawn, own)}


def _find_drawers(roster: Roster, drawn: Mapping[str, str], holder: str) -> set[str]:
    """Finds the clients whose draws have made `holder` their neighbour, faster than one by one."""
    numbers, place = np.stack([_numbers(roster, name, draw) for name, draw in drawn.items()]), roster.points[holder] - 1
    own = numbers[:, place : place + 1]
    before = np.count_nonzero(numbers < own, axis=1) + np.count_nonzero(numbers[:, :place] == own, axis=1)
    return {name for name, few in zip(drawn, (before < _degree(roster)).tolist(), strict=True) if few} - {holder}


def _numbers(roster: Roster, client: str, draw: str) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    stream = hashlib.shake_256(roster.context.label("neighbours", client, draw)).digest(WORD * len(roster.members))
    numbers = np.frombuffer(bytearray(stream), dtype="<u8")
    numbers[roster.points[client] - 1] = np.iinfo(np.uint64).max  # nobody is its own neighbour
    return numbers


def _degree(roster: Roster) -> int:
    assert roster.graph is not None
    return roster.graph.degree
