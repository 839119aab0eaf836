"""Shamir's secret sharing that others can verify: any `threshold` shares restore a secret.

A share is the value at x = 1, 2, ... of a random polynomial f modulo ORDER with f(0) = secret. The dealer draws a
second polynomial b, commits to each f(x) with b(x) by a hash, and answers the challenge c, a hash over all commitments,
with z(x) = b(x) + c f(x). That z is a polynomial of degree below `threshold` shows by a random word of the dual code
(Cascudo and David, "SCRAPE", ACNS 2017, section 2.1), in integers alone; a share fits if it and z(x) - c f(x) are what
was committed to. As b blinds f, z tells nothing of it.

Paper: Atapoor, Baghery, Cozzo and Pedersen, "VSS from Distributed ZK Proofs and Applications", ASIACRYPT 2023, where a
hash commits to f(0) too; here: a published point f(0) G, so that z(0) and b(0) G are Schnorr's proof of its secret.

Whichever shares pass, of `threshold` holders or more: had they another f(0) than the point, or none in common, one
challenge alone would let their z be such a polynomial. A dealer that tries finds one for some of the C(count,
threshold) sets of holders once in ORDER / C(count, threshold) times: 2^195 for 76 holders, the most on a usual graph.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from functools import lru_cache

from shared.errors import ProtocolError
from shared.protocol.secure import group
from shared.protocol.secure.group import ORDER

STEPS = 24  # of Horner's rule between two reductions


def split_secret(secret: int, count: int, threshold: int) -> list[int]:
    """Splits a secret into shares for x = 1 to `count`.

    The other coefficients are fresh from the operating system.
    """
    if not 0 < secret < ORDER:
        raise ProtocolError("expected a secret from 1 to the group's order, got another")
    if not 1 <= threshold <= count:
        raise ProtocolError(f"expected a threshold from 1 to {count} shares, got {threshold}")
    coefficients = [secret, *(secrets.randbelow(ORDER) for _ in range(threshold - 1))]
    return [_evaluate(coefficients, x) for x in range(1, count + 1)]


def _evaluate(coefficients: Sequence[int], x: int) -> int:
    """Evaluates a polynomial at x by Horner's rule; `coefficients` begin with the constant.

    It is reduced now and then: x is small, so that each step adds few bits.
    """
    value = 0
    for begin in range(len(coefficients), 0, -STEPS):
        for coefficient in reversed(coefficients[max(0, begin - STEPS) : begin]):
            value = value * x + coefficient
        value %= ORDER
    return value


def require_consistent(values: Sequence[int], threshold: int) -> None:
    """Raises ProtocolError unless values are of one polynomial of degree below `threshold`.

    values: at x = 0, 1, 2, ... They are checked against a random word of the dual code: values of another polynomial
    pass once in ORDER times.
    """
    weights = _draw_dual_word(len(values) - 1, threshold)
    if sum(weight * value for weight, value in zip(weights, values, strict=True)) % ORDER:
        raise ProtocolError(f"expected commitments to shares of one secret, any {threshold} of which restore it")


def _draw_dual_word(count: int, threshold: int) -> list[int]:
    """Draws a random word of the dual code.

    Scalars c with sum of c_x f(x) = 0 over x = 0 to `count` for every polynomial f of degree below `threshold`.
    """
    coefficients = [group.draw_scalar() for _ in range(count - threshold + 1)]
    return [_evaluate(coefficients, x) * weight % ORDER for x, weight in enumerate(_dual_weights(count))]


@lru_cache(maxsize=64)
def _dual_weights(count: int) -> tuple[int, ...]:
    """Computes the weights of the dual code for each x from 0 to `count`.

    1 / product of (x - y) over all other y: (-1)^(count - x) / (x! (count - x)!).
    """
    factorials = [1]
    for x in range(1, count + 1):
        factorials.append(factorials[-1] * x % ORDER)
    return tuple(
        (-1) ** (count - x) * pow(factorials[x] * factorials[count - x], -1, ORDER) % ORDER for x in range(count + 1)
    )


def lagrange_weights(points: Sequence[int]) -> dict[int, int]:
    """Computes Lagrange's weight of each x for the value at 0.

    The weights serve all secrets that are shared at the same points. Raises ProtocolError unless the points are
    different and from 1 to ORDER - 1.
    """
    if len(set(points)) != len(points) or not all(0 < x < ORDER for x in points):
        raise ProtocolError(f"expected shares of different holders, got {len(points)} of {len(set(points))}")
    return {x: _weight(x, points) for x in points}


def _weight(x: int, points: Sequence[int]) -> int:
    above = below = 1
    for other in points:
        if other != x:
            above = above * other % ORDER
            below = below * (other - x) % ORDER
    return above * pow(below, -1, ORDER) % ORDER


def restore_secret(shares: Mapping[int, int], weights: Mapping[int, int]) -> int:
    """Restores a secret from at least `threshold` shares and their points' weights.

    Fewer or wrong shares give another scalar: check the result against the point that commits to the secret.
    """
    return sum(shares[x] * weight for x, weight in weights.items()) % ORDER
