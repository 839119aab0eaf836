"""The sums of the common basis in which silos have been -> may there be another one.

What a silo adds to a basis sum follows from its data alone. The sum over four silos less the sum over three of them is
the fourth one's part, to the digit; the sums over the same four before and after one has changed its data differ by
that change. So of any combination of the sums either nothing is left, or parts of at least m silos.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from shared.method.declaration import Declaration
from shared.protocol.secure.membership import PRIMES, reduce_rows
from shared.protocol.secure.messages import PublicKeys
from shared.strategies.common_basis import NAME, WEIGHTED

LEAST_SILOS = 3  # m: with fewer, one of them knows the other's part
Stamps = Mapping[str, str]
"""The members of one sum, and the stamp of each one's data: the same for the same data, another for others."""


def is_basis(declaration: Declaration) -> bool:
    """Is what is summed statistics of the silos' data?"""
    return declaration.strategy == NAME


def needs_stamps(declaration: Declaration) -> bool:
    """Does it follow from the silos' data alone, without noise, the same in every run?"""
    return is_basis(declaration) and all(spec.name != WEIGHTED for spec in declaration.tensors)


def stamps_of(keys: Mapping[str, PublicKeys], members: Iterable[str]) -> dict[str, str]:
    """What the members have signed of their data; "" for one that says nothing."""
    return {name: keys[name].stamp or "" for name in members}


def find_basis_objection(earlier: Iterable[Stamps], new: Stamps, least: int) -> str | None:
    """Why this sum must not be made beside those; None where it may."""
    if silent := sorted(name for name, stamp in new.items() if not stamp):
        return f"expected every member of a sum of the common basis to sign its stamp, got none of {', '.join(silent)}"
    if len(new) < least:
        return f"expected {least} silos or more in a sum of the common basis, got {len(new)}"
    told = find_few([*earlier, new], least)
    return None if not told else _describe(told, least)


def _describe(told: Collection[str], least: int) -> str:
    words = f"expected nobody, or {least} silos or more together, to have come, gone or changed their data"
    names = ", ".join(sorted(told))
    return f"{words} since earlier sums of the common basis; beside those, this sum would tell of {names} alone"


def find_few(sums: Iterable[Stamps], least: int) -> frozenset[str]:
    """Fewer than `least` silos of whose parts alone some linear combination of the sums is made; empty: no such.

    A silo with the same data in two sums has the same part in both, with other data another one. Silos that come, go
    and change in the same sums have the same weights in every combination: where these are `least` or more, no
    combination is of them alone.
    """
    rows = sorted({tuple(sorted(one.items())) for one in sums})
    columns = _columns(rows)
    groups = [names for names in _alike(columns) if len(names) < least]
    for chosen in _unions(groups, least):
        if any(_tells(columns, chosen, prime) for prime in PRIMES):
            return chosen
    return frozenset()


Column = tuple[int, ...]


def _columns(rows: Sequence[tuple[tuple[str, str], ...]]) -> dict[str, frozenset[Column]]:
    """For each silo in which sums each of its parts is."""
    members = [frozenset(row) for row in rows]
    found: dict[str, set[Column]] = {}
    for part in sorted(set().union(*members)):
        found.setdefault(part[0], set()).add(tuple(int(part in row) for row in members))
    return {name: frozenset(columns) for name, columns in found.items()}


def _alike(columns: Mapping[str, frozenset[Column]]) -> list[frozenset[str]]:
    """Silos whose parts are in the same sums, together."""
    groups: dict[frozenset[Column], set[str]] = {}
    for name, own in columns.items():
        groups.setdefault(own, set()).add(name)
    return [frozenset(names) for names in groups.values()]


def _unions(groups: Sequence[frozenset[str]], least: int) -> Iterator[frozenset[str]]:
    """Every union of them that has fewer than `least` silos, the smallest first."""
    for count in range(1, least):
        for some in combinations(groups, count):
            union = frozenset[str]().union(*some)
            if len(union) < least:
                yield union


def _tells(columns: Mapping[str, frozenset[Column]], chosen: frozenset[str], prime: int) -> bool:
    """Is there a combination that leaves something of these silos and nothing of the others?"""
    others = set[Column]().union(*(own for name, own in columns.items() if name not in chosen))
    every = others.union(*(columns[name] for name in chosen))
    return every != others and _rank(every, prime) > _rank(others, prime)


def _rank(columns: Collection[Column], prime: int) -> int:
    if not columns:
        return 0
    matrix: NDArray[np.int64] = np.array(sorted(columns), dtype=np.int64)
    return int(np.any(reduce_rows(matrix, prime), axis=1).sum())
