"""Members of each sum, and whether a further sum would tell one silo's part."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shared.method.declaration import Declaration
from shared.protocol.secure.messages import PublicKeys
from shared.sums import NOISED, is_sum
from shared.sums.sum import EMPTY_PART_DIGEST

PRIMES = (2**31 - 1, 2**31 - 19)  # products of two residues fit into 64 bits


class MemberSum(NamedTuple):
    """Members of a sum, and those whose update a change of members may reveal.

    bearing: members that allow it, because their updates are noised, or because operator and silo have agreed.
    """

    members: frozenset[str]
    bearing: frozenset[str]


def find_exposed(sums: Sequence[MemberSum], excused: Iterable[str] = ()) -> frozenset[str]:
    """Finds members whose update a combination of sums would tell without permission.

    excused: members that are proven to cheat.
    """
    unprotected = frozenset(name for one in sums for name in one.members - one.bearing)
    return (find_isolated(one.members for one in sums) & unprotected) - frozenset(excused)


def describe_exposed(exposed: Collection[str], run: str) -> str:
    """Describes why a round cannot be summed, and what its operators can do."""
    names = ", ".join(sorted(exposed))
    return (
        f"expected two or more members at a time to leave or join the rounds of {run}, or members with differential"
        f" privacy or whose silo and operator allow it (changing_members); this sum would tell the update of {names}"
    )


def find_isolated(sums: Iterable[Collection[str]]) -> frozenset[str]:
    """Finds clients whose update is a linear combination of the sums.

    Provided that each client's update is the same in all of them. These are the clients whose unit vector lies in the
    row space of the sums' membership matrix. The elimination is modulo a prime; a second prime stops members who
    choose a matrix whose determinant the first one divides.
    """
    rows = sorted({tuple(sorted(members)) for members in sums})
    names = sorted({name for members in rows for name in members})
    matrix = np.array([[name in members for name in names] for members in map(frozenset, rows)], dtype=np.int64)
    found = (_find_unit_rows(matrix, prime) for prime in PRIMES) if rows else ()
    return frozenset(names[column] for columns in found for column in columns)


def _find_unit_rows(matrix: NDArray[np.int64], prime: int) -> list[int]:
    """Lists the columns of rows with one entry in the reduced echelon form."""
    reduced = reduce_rows(matrix % prime, prime)
    return [int(np.flatnonzero(row)[0]) for row in reduced if np.count_nonzero(row) == 1]


def reduce_rows(matrix: NDArray[np.int64], prime: int) -> NDArray[np.int64]:
    """Computes the reduced row echelon form modulo a prime."""
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


LEAST_SILOS = 3  # m: with fewer, one of them knows the other's part
Stamps = Mapping[str, str]
"""The members of one sum, and the stamp of each one's data: the same for the same data, another for others."""


def needs_stamps(declaration: Declaration) -> bool:
    """Tells whether a sum follows from the silos' data alone, without noise."""
    return is_sum(declaration) and all(spec.name not in NOISED for spec in declaration.tensors)


def list_stamps(keys: Mapping[str, PublicKeys], members: Iterable[str]) -> dict[str, str]:
    """Returns the stamps that members have signed of their data; "" where none."""
    return {name: keys[name].stamp or "" for name in members}


def list_adding_stamps(keys: Mapping[str, PublicKeys], members: Iterable[str]) -> dict[str, str]:
    """Returns the stamps of members whose parts are not zeros.

    A part of zeros hides no other part: a combination of sums still gives the other parts alone.
    """
    return list_stamps(keys, (name for name in members if keys[name].catalogue != EMPTY_PART_DIGEST))


def find_basis_objection(earlier: Iterable[Stamps], new: Stamps, least: int) -> str | None:
    """Returns why a sum must not be made beside earlier ones; None if it may."""
    if silent := sorted(name for name, stamp in new.items() if not stamp):
        return f"expected every member of a sum to sign its stamp, got none of {', '.join(silent)}"
    if len(new) < least:
        return f"expected {least} silos or more in a sum, got {len(new)}"
    sums = [*earlier, new]
    for part in STAMP_HALVES:
        if exposed := find_exposed_few(
            [{name: _half(stamp, part) for name, stamp in one.items()} for one in sums], least
        ):
            return _describe(exposed, least)
    return None


def find_list_objection(earlier: Iterable[tuple[Stamps, str]], new: Stamps, listed: str, least: int) -> str | None:
    """Returns why a sum over this list must not be made; None if it may.

    An iterated sum weighs a user by how many listed items it has: sums over several lists of an aggregator's own
    choice would tell which items users have together, and Gram sums over several directions more of nodes' features
    than their columns. What the silos have summed changes with their data alone.
    """
    for stamps, known in earlier:
        changed = {name for name, _ in stamps.items() ^ new.items()}
        if known != listed and len(changed) < least:
            words = "expected the list of items, or the directions, of an earlier sum, until"
            return f"{words} {least} silos or more have come, gone or changed their data, got others"
    return None


STAMP_HALVES = (slice(0, 32), slice(32, 64))  # fingerprints of a silo's training data, and of all its data


def _half(stamp: str, part: slice) -> str:
    return stamp[part] if len(stamp) == STAMP_HALVES[-1].stop else stamp


def _describe(exposed: Collection[str], least: int) -> str:
    words = f"expected no silo, or {least} silos or more together, to have come, gone or changed their data"
    names = ", ".join(sorted(exposed))
    return f"{words} since earlier sums; beside those, this sum would tell of {names} alone"


def find_exposed_few(sums: Iterable[Stamps], least: int) -> frozenset[str]:
    """Finds fewer than `least` silos whose parts alone a combination of sums gives.

    Empty where there are none. A silo with the same data in two sums has the same part in both, with other data
    another one. Silos that come, go and change in the same sums have the same weights in every combination: where
    these are `least` or more, no combination is of them alone.
    """
    rows = sorted({tuple(sorted(one.items())) for one in sums})
    columns = _columns(rows)
    groups = [names for names in _group_alike(columns) if len(names) < least]
    for chosen in _list_unions(groups, least):
        if any(_exposes(columns, chosen, prime) for prime in PRIMES):
            return chosen
    return frozenset()


Column = tuple[int, ...]


def _columns(rows: Sequence[tuple[tuple[str, str], ...]]) -> dict[str, frozenset[Column]]:
    """Returns, for each silo, in which sums each of its parts is."""
    members = [frozenset(row) for row in rows]
    found: dict[str, set[Column]] = {}
    for part in sorted(set().union(*members)):
        found.setdefault(part[0], set()).add(tuple(int(part in row) for row in members))
    return {name: frozenset(columns) for name, columns in found.items()}


def _group_alike(columns: Mapping[str, frozenset[Column]]) -> list[frozenset[str]]:
    """Groups silos whose parts are in the same sums."""
    groups: dict[frozenset[Column], set[str]] = {}
    for name, own in columns.items():
        groups.setdefault(own, set()).add(name)
    return [frozenset(names) for names in groups.values()]


def _list_unions(groups: Sequence[frozenset[str]], least: int) -> Iterator[frozenset[str]]:
    """Yields every union of groups with fewer than `least` silos, the smallest first."""
    for count in range(1, least):
        for some in combinations(groups, count):
            union = frozenset[str]().union(*some)
            if len(union) < least:
                yield union


def _exposes(columns: Mapping[str, frozenset[Column]], chosen: frozenset[str], prime: int) -> bool:
    """Tells whether a combination of sums is of the chosen silos alone."""
    others = set[Column]().union(*(own for name, own in columns.items() if name not in chosen))
    every = others.union(*(columns[name] for name in chosen))
    return every != others and _rank(every, prime) > _rank(others, prime)


def _rank(columns: Collection[Column], prime: int) -> int:
    if not columns:
        return 0
    matrix: NDArray[np.int64] = np.array(sorted(columns), dtype=np.int64)
    return int(np.any(reduce_rows(matrix, prime), axis=1).sum())
