"""Statistics that are summed over silos: the registry and its queries.

A new sum is a file here, its line below, and its half in the client. A federation may declare several, one for each
part of its work. Their runs are held in the order of this registry.
"""

from __future__ import annotations

from shared.errors import ProtocolError, SettingsError
from shared.method.declaration import TRAINING, Declaration, Part
from shared.method.settings import BasisSettings, MethodSettings
from shared.sums.common_items import COMMON_ITEMS
from shared.sums.content import CONTENT_SUM
from shared.sums.item_basis import EXACT, ITERATED
from shared.sums.node_borders import NODE_BORDERS
from shared.sums.node_directions import NODE_DIRECTIONS
from shared.sums.node_gram import NODE_GRAM
from shared.sums.sum import BASIS, Sum
from shared.sums.transitions import TRANSITIONS

SUMS: dict[str, Sum] = {
    one.name: one
    for one in (COMMON_ITEMS, CONTENT_SUM, EXACT, ITERATED, TRANSITIONS, NODE_BORDERS, NODE_DIRECTIONS, NODE_GRAM)
}
WORDS = frozenset(one.word for one in SUMS.values())
NOISED = frozenset(one.noise.tensor for one in SUMS.values() if one.noise is not None)
"""Tensors that leave with noise alone, and under masks."""


def list_sums(method: MethodSettings) -> dict[Part, BasisSettings]:
    """Lists the sums that a federation declares, by part, in the order of their runs.

    What a declared sum is counted over (`Sum.base_part`) is declared with it, with the same numbers of silos and pairs.
    SettingsError for two of one part, and for one beneath the name of another part than its own.
    """
    found: dict[Part, BasisSettings] = {}
    for named, basis in ((None, method.basis), *method.sums.items()):
        if basis.kind == "off":
            continue
        part = find_part(basis)
        if named not in (None, part):
            raise SettingsError(
                f"sums.{named}.kind: expected a sum of the part {named!r}, got {basis.kind!r} of {part!r}"
            )
        if part in found:
            raise SettingsError(f"sums.{part}: expected one sum a part, got {found[part].kind!r} and {basis.kind!r}")
        found[part] = basis
    for basis in tuple(found.values()):
        base = SUMS[basis.kind].base_part(method)
        if base is not None and base not in found:
            kept = {"least_pairs": basis.least_pairs, "least_silos": basis.least_silos}
            kind = next(one.name for one in SUMS.values() if one.part == base)
            found[base] = BasisSettings.model_validate({"kind": kind, **kept})
    order = list(SUMS)
    return dict(sorted(found.items(), key=lambda one: order.index(one[1].kind)))


def find_part(basis: BasisSettings) -> Part:
    """Returns the part to which a sum belongs.

    Over a list that the silos sum, each kind of a basis is a part of its own: all are declared, and the list chooses
    one.
    """
    part = SUMS[basis.kind].part
    return part if basis.places is None else f"{part}_{basis.kind}"


def is_basis(basis: BasisSettings) -> bool:
    """Tells whether training runs use the sum."""
    return basis.kind != "off" and SUMS[basis.kind].part == BASIS


def is_listed(basis: BasisSettings) -> bool:
    """Tells whether a sum is over a list of items."""
    return basis.kind != "off" and SUMS[basis.kind].listed


def needs_list(method: MethodSettings) -> bool:
    """Tells whether the declared sums need a list of items that all silos have."""
    return any(is_listed(one) and one.places is None for one in list_sums(method).values())


def makes_models(basis: BasisSettings, declared: MethodSettings) -> bool:
    """Tells whether silos that share sums alone make their models after this sum.

    It is a basis, or without one a sum that replaces it.
    """
    if is_basis(basis):
        return True
    return replaces_basis(basis) and not any(is_basis(one) for one in list_sums(declared).values())


def replaces_basis(basis: BasisSettings) -> bool:
    """Tells whether silos make models of a sum alone where no basis is summed."""
    return basis.kind != "off" and SUMS[basis.kind].replaces_basis


def method_of_part(method: MethodSettings, part: Part) -> MethodSettings:
    """Returns the settings of a run of this part, with its one sum in `basis`.

    Where the federation has no sum of the part, or several of which a list is to choose, `basis.kind` is off.
    """
    sums = list_sums(method)
    used = [one for one in sums.values() if is_basis(one)]
    found = (used[0] if len(used) == 1 else None) if part == TRAINING else sums.get(part)
    found = found or BasisSettings()
    size = method.catalogue if found.places is None else found.places
    if found is method.basis and not method.sums and size == method.catalogue:
        return method
    return method.model_copy(update={"basis": found, "sums": {}, "catalogue": size})


def describe_part(part: Part, kind: str = "") -> str:
    """Returns the name of a part's sum without an article: "common basis".

    kind: of the sum, if known.
    """
    if kind in SUMS:
        return SUMS[kind].title.removeprefix("the ")
    named = (one for one in SUMS.values() if part in (one.part, f"{one.part}_{one.name}"))
    return next((one.title.removeprefix("the ") for one in named), part)


def find_sum(method: MethodSettings) -> Sum:
    """Returns the sum that the settings choose; raises SettingsError for none."""
    if (found := SUMS.get(method.basis.kind)) is None:
        raise SettingsError(f"basis.kind: expected one of {', '.join(SUMS)}, got {method.basis.kind!r}")
    return found


def is_sum(declaration: Declaration) -> bool:
    """Tells whether a declaration is of statistics of the silos' data."""
    return declaration.strategy in WORDS


def list_allowed_sums(word: str) -> tuple[Sum, ...]:
    """Lists the sums that the policy's field allows."""
    return tuple(one for one in SUMS.values() if one.word == word)


def find_declared(declaration: Declaration) -> Sum:
    """Returns the sum with these tensors; raises ProtocolError for other tensors."""
    names = {spec.name for spec in declaration.tensors}
    found = next((one for one in list_allowed_sums(declaration.strategy) if one.own_names & names), None)
    if found is None:
        words = f"expected the tensors of one of {', '.join(SUMS)}"
        raise ProtocolError(f"sum: {words}, got {', '.join(sorted(names)) or 'none'}")
    return found
