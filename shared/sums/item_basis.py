"""Common basis of the items: sums from which each silo scores with all silos' data.

exact: degrees d and the pairs of G = sum_c X_c^T X_c, in integers. iterated: the products of a subspace iteration on
W = sum_c R_c^T R_c, R_c = D_u^-e X_c D_i^-e, in fixed point (Nicolas et al., arXiv 2501.16888, on users as clients).

exact with epsilon: H = sum_c X_c^T D_u^-1 X_c in fixed point, to which every client adds its part of the noise, and
the variance of that noise. A user adds x x^T / |x| to H, of Frobenius norm 1 however many items it has: nothing is
clipped.

The aggregator adds integers and knows nothing else of it: each client orthonormalises the sum by itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from shared.errors import SettingsError
from shared.method.parameters import Arrays, blocks
from shared.method.settings import BasisSettings, MethodSettings
from shared.method.tensors import Tensor
from shared.sums.sum import (
    FRACTION_BITS,
    Float64,
    Shapes,
    Sum,
    SumNoise,
    describe_rare_pairs,
    require_catalogue,
)

WORD = "common_basis"
DEGREES, PAIRS, PRODUCTS, PACKED = "basis.degrees", "basis.pairs", "basis.products", "basis.packed"
WEIGHTED, NOISE = "basis.weighted", "basis.noise"
MOST_EXACT = 8192  # items whose pairs are summed: 134 MB
USUAL_EXACT = 4096  # most items for which exact is the default kind: 34 MB
# Training interactions an item, below which directions tell more than the pairs that are not hidden: a silo that has
# joined counts all of its data in exact sums, a simulated one its training pairs alone.
FEW_INTERACTIONS, FEW_SIMULATED = 10, 20
USUAL_WORDS = 64  # basis.words of an iterated basis by default: half the bytes of `rank`, and a more accurate basis
USUAL_PLACES = 1 << 14  # items of an iterated basis over a list that the silos sum: 4 MB a round
LEAST_ITERATED = 5 * USUAL_WORDS  # least items for iterated: the number of directions of three rounds


def choose_basis(
    items: int,
    interactions: int | None = None,
    places: Mapping[str, int | None] | None = None,
    *,
    few: int = FEW_INTERACTIONS,
) -> tuple[dict[str, str | int], str]:
    """Chooses the kind of basis for a list of items, with the reason.

    interactions: training pairs of all silos, where they are known, as in a simulation; None: unknown. places: of
    each kind, how many items its tensors have room for, where that is declared before the list is known. few:
    interactions an item below which the sums are iterated.
    """
    sizes = {kind: size for kind, size in (places or {}).items() if size is not None}
    of_exact, of_iterated = sizes.get("exact", items), sizes.get("iterated", items)
    count, exact = f"{items:,} items", 2 * of_exact * (of_exact + 1)
    iterated: dict[str, str | int] = {"kind": "iterated", "words": USUAL_WORDS}
    if interactions is not None and interactions < few * items and items >= LEAST_ITERATED:
        each = f"{interactions / items:.1f} interactions an item"
        why = f"below {few} most pairs are too rare to be handed out, and directions tell more"
        return iterated, f"iterated sums: {count} with {each}, and {why}"
    if items <= USUAL_EXACT:
        why = f"a list of up to {USUAL_EXACT:,} is summed pair by pair: {exact / 1e6:,.1f} MB of each silo, once"
        return {"kind": "exact"}, f"exact sums: {count}, and {why}"
    sent = 4 * of_iterated * (USUAL_WORDS + 1)
    why = (
        f"beyond {USUAL_EXACT:,} most pairs are too rare to be handed out, and cost {exact / 1e6:,.0f} MB of each silo"
        f" in place of {sent / 1e6:,.1f} MB a round"
    )
    return iterated, f"iterated sums: {count}, and {why}"


def exact_tensors(method: MethodSettings) -> tuple[Tensor, ...]:
    """Lists the tensors of degrees and pairs, or of the noised sum.

    Raises SettingsError without a catalogue, or with one too long for its pairs.
    """
    items = require_catalogue(method)
    if items > MOST_EXACT:
        raise SettingsError(
            f"basis.kind: expected 'iterated' for more than {MOST_EXACT} items, got 'exact' with {items}"
        )
    if method.basis.epsilon is not None:
        weighted = Tensor(WEIGHTED, (items * (items + 1) // 2,), "zeros", dtype="U32")
        return (Tensor(NOISE, (1,), "zeros", dtype="U32"), weighted)
    return (_degrees(items), Tensor(PAIRS, (items * (items - 1) // 2,), "zeros", dtype="U32"))


def exact_sizes(basis: BasisSettings, shapes: Shapes) -> Mapping[str, int]:
    """Returns the catalogue's size."""
    del basis
    if DEGREES in shapes:
        return {"catalogue": shapes[DEGREES][0]}
    return {"catalogue": count_columns(shapes[WEIGHTED][0])}


def iterated_tensors(method: MethodSettings) -> tuple[Tensor, ...]:
    """Lists the tensors of degrees and products.

    Raises SettingsError without a catalogue, or with more directions than items.
    """
    items, basis = require_catalogue(method), method.basis
    if basis.rank > items:
        raise SettingsError(f"basis.rank: expected at most catalogue = {items}, got {basis.rank}")
    if basis.words is None:
        return (_degrees(items), Tensor(PRODUCTS, (items, basis.rank), "zeros", dtype="U32"))
    if not basis.rank <= basis.directions <= items:
        words = f"expected from basis.rank = {basis.rank} to catalogue = {items} directions in all rounds"
        raise SettingsError(f"basis.words: {words}, got {basis.directions} with {basis.words}")
    return (_degrees(items), Tensor(PACKED, (items, basis.words), "zeros", dtype="U32"))


def iterated_sizes(basis: BasisSettings, shapes: Shapes) -> Mapping[str, int]:
    """Returns the catalogue's size, and the numbers of an item a round unless set."""
    tensors = {"rank": PRODUCTS, "words": PACKED}
    found = {name: shapes[key][1] for name, key in tensors.items() if key in shapes}
    asked = basis.model_fields_set
    return {"catalogue": shapes[DEGREES][0]} | {
        f"basis.{name}": size for name, size in found.items() if name not in asked
    }


def _degrees(items: int) -> Tensor:
    return Tensor(DEGREES, (items,), "zeros", dtype="U32")


def hide_rare_pairs(method: MethodSettings, sums: Arrays) -> Arrays:
    """Sets pairs to 0 that fewer than `least_pairs` users have."""
    if PAIRS not in sums:
        return sums
    pairs = np.array(sums[PAIRS])
    for begin, end in blocks(pairs.size):
        part = pairs[begin:end]
        part[part < method.basis.least_pairs] = 0
    return {**sums, PAIRS: pairs}


def count_columns(entries: int) -> int:
    """Counts the columns of an upper triangle with diagonal of this many entries."""
    return (math.isqrt(8 * entries + 1) - 1) // 2


def entry_deviations(entries: int, deviation: float) -> Float64:
    """Computes the noise's deviation for each entry of an upper triangle by rows."""
    found = np.full(entries, deviation / math.sqrt(2.0))
    found[np.cumsum(np.concatenate([[0], np.arange(count_columns(entries), 1, -1)]))] = deviation
    return found


LEARNT = "which items some silo has, how often, and which go together"
HAVE_ITEM, DIRECTIONS = (
    "how many of its users have each item",
    "products of its users' items with directions that all silos know",
)


def describe_directions(basis: BasisSettings) -> str:
    """Describes what all silos learn by directions, which hide no rare pairs."""
    del basis
    return LEARNT


EXACT = Sum(
    name="exact",
    word=WORD,
    title="the common basis",
    statistics="statistics of its items",
    tensors=exact_tensors,
    own_names=frozenset({PAIRS, WEIGHTED, NOISE}),
    sizes=exact_sizes,
    fraction_bits={WEIGHTED: FRACTION_BITS, NOISE: FRACTION_BITS},
    hand_out=hide_rare_pairs,
    noise=SumNoise(WEIGHTED, NOISE, entry_deviations),
    words={
        DEGREES: HAVE_ITEM,
        PAIRS: "how many have both, for each two items",
        WEIGHTED: "how often each two items go together, by user, with noise",
        NOISE: "how much noise that is",
    },
    disclosure=lambda basis: f"{LEARNT}{describe_rare_pairs(basis, 'users')}",
)
ITERATED = Sum(
    name="iterated",
    word=WORD,
    title="the common basis",
    statistics="statistics of its items",
    tensors=iterated_tensors,
    own_names=frozenset({PRODUCTS, PACKED}),
    sizes=iterated_sizes,
    fraction_bits={PRODUCTS: FRACTION_BITS, PACKED: FRACTION_BITS},  # of the latter in the first round
    rounds=lambda basis: basis.rounds,
    sums_needed=lambda basis: min(2, basis.rounds) if basis.words is None else basis.rounds,
    steady=("basis.exponent",),
    words={DEGREES: HAVE_ITEM, PRODUCTS: DIRECTIONS, PACKED: DIRECTIONS},
    disclosure=describe_directions,
)
