"""The sums of the items at a silo: exact pairs and iterated frequencies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from client_service.data.interactions import Shard
from client_service.models.closed_form.scorer_part import Scorer
from client_service.models.initial_filter import CommonSpectrum
from client_service.sums.basis import (
    CommonBasis,
    make_basis_of_last_round,
    make_exact_basis,
    make_iterated_basis,
    make_noised_basis,
    require_possible,
)
from client_service.sums.common_items import ARRAYS as ITEM_ARRAYS
from client_service.sums.common_items import read_items
from client_service.sums.scorers import Places, common_scorers, common_spectrum, find_frame
from client_service.sums.silo_sum import FIXED_BYTES, Arrays, SiloSum, SummedDigests, SumRound, Sums
from client_service.sums.statistics import (
    begin_sums,
    catalogue_matrix,
    count_pairs,
    encode_sums,
    measure_covered_share,
    normalised_products,
    pack_sums,
    raw_products,
    restrict_to_training,
    training_digest,
    weigh_pairs,
)
from client_service.sums.subspace_iteration import ExploredSubspace, explore, first_directions, next_directions
from client_service.sums.subspace_iteration import start_directions as draw_directions
from shared.errors import DataError
from shared.method.declaration import Counts
from shared.method.run_memory import SPARSE, Cost
from shared.method.settings import MethodSettings
from shared.sums.item_basis import DEGREES, EXACT, ITERATED, PRODUCTS
from shared.sums.sum import decode_fixed


def count_in_catalogue(shard: Shard, method: MethodSettings) -> sparse.csr_array:
    """Returns X_c: the training pairs over the items of the catalogue, (M, N)."""
    return catalogue_matrix(shard, method.catalogue)


def digest_summed(shard: Shard, method: MethodSettings) -> SummedDigests:
    """Computes digests of the training pairs and of the catalogue."""
    del method
    return SummedDigests(training_digest(shard), shard.catalogue)


def add_pairs(at: SumRound) -> Sums:
    """Computes degrees and pairs; with epsilon weighted pairs, which are not noised yet."""
    return (count_pairs if at.method.basis.epsilon is None else weigh_pairs)(at.counted)


def finish_pairs(at: SumRound) -> CommonBasis:
    """Computes the basis from exact sums, noised or not."""
    sums, basis = at.sums[at.number], at.method.basis
    if basis.epsilon is not None:
        return require_possible(make_noised_basis(sums, at.method.catalogue, basis.rank))
    return require_possible(make_exact_basis(sums, basis.exponent))


def add_products(at: SumRound) -> Sums:
    """Computes degrees, and products with the round's directions."""
    basis = at.method.basis
    if basis.words is not None:
        return _explore_further(at, basis.words)
    directions = _find_directions(at)
    if at.number == 1:
        products = raw_products(at.counted, directions, basis.exponent)
    else:
        all_degrees = at.sums[min(at.sums)][DEGREES].astype(np.int64)
        products = normalised_products(at.counted, directions, basis.exponent, all_degrees)
    return encode_sums(at.counted, products, at.clients)


def finish_products(at: SumRound) -> CommonBasis:
    """Computes the basis from the last round's sums; with basis.words, from those of all rounds."""
    basis, sums = at.method.basis, at.sums[at.number]
    if basis.words is not None:
        return require_possible(make_iterated_basis(_explore_rounds(at, at.number), sums[DEGREES], basis.rank))
    return require_possible(make_basis_of_last_round(sums, _find_directions(at), basis.exponent))


def _explore_further(at: SumRound, words: int) -> Sums:
    """Encodes a round's products where those of all rounds are kept."""
    if at.number > 1:
        return pack_sums(at.counted, _explore_rounds(at, at.number - 1))
    start = first_directions(at.seed, at.method.catalogue, words)
    return begin_sums(at.counted, start, at.method.basis.exponent, at.clients)


def _explore_rounds(at: SumRound, last: int) -> ExploredSubspace:
    """Computes the subspace that the sums up to a round have explored."""
    return explore([at.sums[number] for number in range(1, last + 1)], at.method.basis.exponent, at.seed)


def _find_directions(at: SumRound) -> NDArray[np.float64]:
    """Computes the directions of a round from the seed, or from the last round's sums."""
    if at.number == 1:
        return draw_directions(at.seed, at.method.catalogue, at.method.basis.rank)
    before = at.sums[at.number - 1]
    products, all_degrees = decode_fixed(before[PRODUCTS]), before[DEGREES].astype(np.int64)
    return next_directions(products, all_degrees, at.method.basis.exponent, first=at.number == 2)


def read_basis(arrays: Arrays, metadata: Mapping[str, str]) -> CommonBasis:
    """Builds a basis from its arrays on disk."""
    kind: Literal["exact", "iterated"] = "exact" if "pairs" in arrays else "iterated"
    items = read_items(arrays, metadata) if "federation" in metadata else None
    given: dict[str, Any] = {name: value for name, value in arrays.items() if items is None or name not in ITEM_ARRAYS}
    return CommonBasis(kind, float(metadata["exponent"]), **given, items=items)


def is_count(method: MethodSettings) -> bool:
    """Tells whether the sums are counts, from which each silo can subtract its own part.

    That holds neither for directions nor for noised pairs.
    """
    return method.basis.epsilon is None


def score_items(basis: CommonBasis, shard: Shard) -> tuple[Scorer, ...]:
    """Builds the scorers of the shard's items from the basis.

    The shard's own held-out pairs are subtracted, because scores are judged by them. Raises DataError for a shard
    without places in the common catalogue.
    """
    shard = basis.place(shard)
    places = _require_places(shard)
    return common_scorers(restrict_to_training(basis, shard), places, shard.train)


def find_covered_share(basis: CommonBasis, shard: Shard) -> float:
    """Computes `measure_covered_share` at the basis's places."""
    return measure_covered_share(basis, basis.place(shard))


def find_frequencies(basis: CommonBasis, shard: Shard, method: MethodSettings) -> CommonSpectrum:
    """Computes the frequencies of all silos' graph for the shard's items.

    The shard's own held-out pairs are subtracted, because the model is judged by them. Raises DataError as
    `score_items`.
    """
    shard = basis.place(shard)
    known = restrict_to_training(basis, shard)
    frame = None if known is basis else find_frame(basis)
    return common_spectrum(known, _require_places(shard), shard.train, method.cutoff, frame)


def _require_places(shard: Shard) -> Places:
    if shard.places is None:
        raise DataError("expected the shard's items to have places in the common catalogue, they have none")
    return shard.places


def cost_pairs(method: MethodSettings, shard: Counts) -> list[Cost]:
    """Estimates the cost of exact sums and the basis; the sums first."""
    del shard
    items = float(method.catalogue)
    square = (24.0 if method.basis.epsilon is None else 40.0) * items**2
    return [
        Cost("the sums", FIXED_BYTES + 4.0 * items**2),
        Cost(f"pairs of {method.catalogue:,} items", square, 10.0 * items**2),
    ]


def cost_products(method: MethodSettings, shard: Counts) -> list[Cost]:
    """Estimates the cost of iterated sums; the kept sums first."""
    basis, items, columns = method.basis, float(method.catalogue), float(method.basis.directions)
    kept = 4.0 * items * (basis.words or basis.rank) * ITERATED.sums_needed(basis)
    words = f"{basis.directions:,} directions (basis.rank, basis.words, basis.rounds) of {method.catalogue:,} items"
    held = 8.0 * (5.0 * items * columns + 3.0 * columns**2 + 2.0 * shard.users * (basis.words or basis.rank))
    operations = SPARSE * 4.0 * shard.edges * columns + 8.0 * items * columns**2 + 10.0 * columns**3
    return [Cost("the sums", FIXED_BYTES + kept), Cost(words, held, operations)]


def bytes_of_directions(method: MethodSettings) -> float:
    """Estimates the memory of scorers and start from directions, in bytes."""
    return 60.0 * float(method.catalogue) * method.basis.directions


def bytes_of_pairs(method: MethodSettings) -> float:
    """Estimates the memory of scorers and start from pairs, in bytes.

    The subtraction of the silo's own part is counted too.
    """
    return 72.0 * float(method.catalogue) ** 2 if is_count(method) else bytes_of_directions(method)


def warn_of_rare_pairs(method: MethodSettings) -> tuple[str, ...]:
    """Warns that rare pairs are only hidden from honest silos."""
    basis = method.basis
    if basis.epsilon is not None or basis.least_pairs == 1:
        return ()
    return (
        f"a silo that lies about its own counts reads pairs of items that fewer than {basis.least_pairs} users have"
        " too (basis.least_pairs): policy.common_basis = noised takes part in noised sums alone",
    )


EXACT_SUM = SiloSum(
    declared=EXACT,
    task="items",
    count=count_in_catalogue,
    digests=digest_summed,
    add=add_pairs,
    finish=finish_pairs,
    load=read_basis,
    may_add_all_data=is_count,
    scorers=score_items,
    covered_share=find_covered_share,
    start=find_frequencies,
    costs=cost_pairs,
    use_bytes=bytes_of_pairs,
    warnings=warn_of_rare_pairs,
)
ITERATED_SUM = SiloSum(
    declared=ITERATED,
    task="items",
    count=count_in_catalogue,
    digests=digest_summed,
    add=add_products,
    finish=finish_products,
    load=read_basis,
    scorers=score_items,
    covered_share=find_covered_share,
    start=find_frequencies,
    costs=cost_products,
    use_bytes=bytes_of_directions,
)
