"""The members of several sums -> whose update a combination of these sums would tell.

Secure aggregation hides an update in one sum. Two sums whose members differ in one client tell that client's update,
as far as the others' updates are alike in both; so do more than two sums by a linear combination (So et al., "Securing
Secure Aggregation: Mitigating Multi-Round Privacy Leakage in Federated Learning", AAAI 2023).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

PRIMES = (2**31 - 1, 2**31 - 19)  # products of two residues fit into 64 bits


class MemberSum(NamedTuple):
    """Whose updates a sum holds; and who of them bears it that a change of its membership alone tells its update,
    because what it sends is noised, or because operator and silo have said so."""

    members: frozenset[str]
    bearing: frozenset[str]


def find_exposed(sums: Sequence[MemberSum], excused: Iterable[str] = ()) -> frozenset[str]:
    """Whose update a combination of these sums would tell who does not bear it. `excused`: who is proven to cheat."""
    unprotected = frozenset(name for one in sums for name in one.members - one.bearing)
    return (find_isolated(one.members for one in sums) & unprotected) - frozenset(excused)


def describe_exposed(exposed: Collection[str], run: str) -> str:
    """Why a round cannot be summed, and what its operators may do."""
    names = ", ".join(sorted(exposed))
    return (
        f"expected two or more members at a time to leave or join the rounds of {run}, or members with differential"
        f" privacy or whose silo and operator allow it (changing_members); this sum would tell the update of {names}"
    )


def find_isolated(sums: Iterable[Collection[str]]) -> frozenset[str]:
    """The clients whose update some linear combination of the sums is, if each client's were the same in all of them.

    These are the clients whose unit vector lies in the row space of the sums' membership matrix. The elimination is
    modulo a prime; a second one makes it useless to look for members whose determinant the first one divides.
    """
    rows = sorted({tuple(sorted(members)) for members in sums})
    names = sorted({name for members in rows for name in members})
    matrix = np.array([[name in members for name in names] for members in map(frozenset, rows)], dtype=np.int64)
    found = (_find_unit_rows(matrix, prime) for prime in PRIMES) if rows else ()
    return frozenset(names[column] for columns in found for column in columns)


def _find_unit_rows(matrix: NDArray[np.int64], prime: int) -> list[int]:
    """The columns of the single entries of those rows of the reduced echelon form that have one entry alone."""
    reduced = reduce_rows(matrix % prime, prime)
    return [int(np.flatnonzero(row)[0]) for row in reduced if np.count_nonzero(row) == 1]


def reduce_rows(matrix: NDArray[np.int64], prime: int) -> NDArray[np.int64]:
    """The reduced row echelon form modulo a prime."""
    place = 0
    for column in range(matrix.shape[1]):
        below = np.flatnonzero(matrix[place:, column])
        if len(below) == 0:
            continue
        matrix[[place, place + below[0]]] = matrix[[place + below[0], place]]
        matrix[place] = matrix[place] * pow(int(matrix[place, column]), -1, prime) % prime
        factors = matrix[:, column].copy()
        factors[place] = 0
        matrix = (matrix - factors[:, None] * matrix[place] % prime) % prime
        place += 1
        if place == len(matrix):
            break
    return matrix
