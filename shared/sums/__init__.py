"""Statistics that are summed over silos. A new one is a file here, its line below, and its half in the client."""

from __future__ import annotations

from shared.errors import ProtocolError, SettingsError
from shared.method.declaration import Declaration
from shared.method.settings import MethodSettings
from shared.sums.item_basis import EXACT, ITERATED
from shared.sums.sum import Sum
from shared.sums.transitions import TRANSITIONS

SUMS: dict[str, Sum] = {one.name: one for one in (EXACT, ITERATED, TRANSITIONS)}
WORDS = frozenset(one.word for one in SUMS.values())
NOISED = frozenset(one.noise.tensor for one in SUMS.values() if one.noise is not None)
"""Tensors that leave with noise alone, and under masks."""


def find_sum(method: MethodSettings) -> Sum:
    """The sum that the settings choose. SettingsError where they choose none."""
    if (found := SUMS.get(method.basis.kind)) is None:
        raise SettingsError(f"basis.kind: expected one of {', '.join(SUMS)}, got {method.basis.kind!r}")
    return found


def is_sum(declaration: Declaration) -> bool:
    """Is what is declared statistics of the silos' data?"""
    return declaration.strategy in WORDS


def list_of_word(word: str) -> tuple[Sum, ...]:
    """The sums that the policy allows by this word."""
    return tuple(one for one in SUMS.values() if one.word == word)


def find_declared(declaration: Declaration) -> Sum:
    """The sum whose tensors these are. ProtocolError for other ones."""
    names = {spec.name for spec in declaration.tensors}
    found = next((one for one in list_of_word(declaration.strategy) if one.own_names & names), None)
    if found is None:
        words = f"expected the tensors of one of {', '.join(SUMS)}"
        raise ProtocolError(f"sum: {words}, got {', '.join(sorted(names)) or 'none'}")
    return found
