"""Chooses closed-form filters by validation: ideal low pass, GF-CF, EASE, and lists from each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from scipy import sparse

from client_service.data.interactions import Shard
from client_service.evaluation.metrics import Measures, measure_hits
from client_service.evaluation.ranking import (
    Candidates,
    TopItems,
    find_candidate_hits,
    measure_validation,
    rank_by_scores,
    sample_validation_users,
)
from client_service.models.closed_form.ease import RIDGES as EASE_RIDGES
from client_service.models.closed_form.ease import ease_scores
from client_service.models.initial_filter import Filter, build_start, node_degrees
from client_service.models.ranker import Rows
from client_service.runtime.interruption import NEVER, Interrupt
from shared.method.graph import degree_power, degrees
from shared.method.parameters import Float32
from shared.method.spectrum import Spectrum

Choice = TypeVar("Choice")

RIDGES = (0.1, 0.4, 1.0, 2.5)
CUTOFFS = (8, 16, 32, 64, 128, 256)
EXPONENTS = (0.1, 0.3, 0.5)
USUAL_EXPONENT = 0.3
LOW_PASS = tuple(Filter(cutoff, ridge=0.0, exponent=0.5) for cutoff in (16, 32, 64))
EASE_SIDE = 25_000  # three matrices of 2.5 GB at once; on one core about 3 minutes a ridge


@dataclass(frozen=True)
class BestChoice(Generic[Choice]):
    """Best of several candidates by the primary measure on validation items."""

    choice: Choice
    top: TopItems
    validation: Measures


def filter_scores(chosen: Filter, spectrum: Spectrum, train: sparse.csr_array) -> Callable[[Rows], Float32]:
    """Builds the function that scores all items by a filter alone.

    User rows (B,) to (B, N): one GEMM a block of users.
    """
    start = build_start(chosen, spectrum, train)
    users = (start.users * start.user_scale[:, None]).astype(np.float32)
    items = (start.items * start.item_scale[:, None]).T.astype(np.float32)
    return lambda rows: users[rows] @ items


def filter_top(chosen: Filter, spectrum: Spectrum, train: sparse.csr_array) -> TopItems:
    """Computes lists of the filter alone."""
    return rank_by_scores(filter_scores(chosen, spectrum, train))


def best_filter(shard: Shard, spectrum: Spectrum, interrupt: Interrupt = NEVER) -> BestChoice[Filter]:
    """Chooses the filter by validation.

    First cut-off and ridge, then the exponent; ideal low-pass filters are candidates too.
    """
    longest = len(spectrum.singular)
    cutoffs = sorted({min(cutoff, longest) for cutoff in CUTOFFS})
    coarse = [Filter(cutoff, ridge, USUAL_EXPONENT) for cutoff in cutoffs for ridge in RIDGES]
    found = _best_of(shard, spectrum, coarse, interrupt).choice
    fine = [Filter(found.cutoff, found.ridge, exponent) for exponent in EXPONENTS]
    return _best_of(shard, spectrum, [*fine, *LOW_PASS], interrupt)


def best_low_pass(shard: Shard, spectrum: Spectrum, interrupt: Interrupt = NEVER) -> BestChoice[Filter]:
    """Chooses an ideal low-pass filter, h = 1, of 16, 32 or 64 components."""
    return _best_of(shard, spectrum, LOW_PASS, interrupt)


def popularity_top(shard: Shard) -> TopItems:
    """Lists the most popular items for every user.

    Of items with equally many training edges the one whose id sorts first comes first. Scores are places in this order,
    exact in float32 up to 2^24 items, so that no two are equal and the order of ties in `rank_by_scores` does not
    matter.
    """
    _, by_item = degrees(shard.train)
    order = np.lexsort((np.array(shard.item_ids), -by_item))  # the last key counts first
    places = np.empty(len(order), dtype=np.float32)
    places[order] = np.arange(len(order), 0, -1)
    return rank_by_scores(lambda rows: np.broadcast_to(places, (len(rows), len(places))))


def best_ease(shard: Shard, side: int = EASE_SIDE, interrupt: Interrupt = NEVER) -> BestChoice[float] | None:
    """Chooses the ridge of EASE; None if both sides of the graph exceed `side`."""
    if min(shard.train.shape) > side:
        return None
    ridges = interrupt.check_each(EASE_RIDGES)
    return _best(shard, ((ridge, rank_by_scores(ease_scores(shard.train, ridge))) for ridge in ridges))


def _best_of(shard: Shard, spectrum: Spectrum, filters: Sequence[Filter], interrupt: Interrupt) -> BestChoice[Filter]:
    order, scores = _scores_of_each(filters, spectrum, shard.train)
    users = sample_validation_users(shard.train.shape[0], seed=0)
    hits, relevant = find_candidate_hits(scores, shard.valid, shard.train, users, interrupt)
    measured = dict(zip(order, (measure_hits(one, relevant) for one in hits), strict=True))
    chosen = max(filters, key=lambda one: measured[one].primary_value)
    return BestChoice(chosen, filter_top(chosen, spectrum, shard.train), measured[chosen])


def _scores_of_each(
    filters: Sequence[Filter], spectrum: Spectrum, train: sparse.csr_array
) -> tuple[list[Filter], Candidates]:
    """Returns filters in the order of scoring, and the scores of each.

    Scores lack a factor of each user. Filters that differ in the cut-off alone share the sums over the lower
    frequencies.
    """
    order = sorted(filters, key=lambda one: (one.ridge, one.cutoff))
    items = np.ascontiguousarray(spectrum.items.T, dtype=np.float32)
    _, by_item = node_degrees(spectrum, train)
    scales = {one.exponent: degree_power(by_item, one.exponent).astype(np.float32) for one in order}

    def scores(rows: Rows) -> Iterator[Float32]:
        users, before = spectrum.users[rows], None
        total, scaled = np.zeros((2, len(rows), items.shape[1]), np.float32)
        for one in order:
            first = 0
            if before is None or before.ridge != one.ridge:
                total[:] = 0.0
            else:
                first = before.cutoff
            if first < one.cutoff:
                weights = (spectrum.singular * one.response(spectrum.singular))[first : one.cutoff]
                left = (users[:, first : one.cutoff] * weights).astype(np.float32)
                total += np.matmul(left, items[first : one.cutoff], out=scaled)
            yield np.multiply(total, scales[one.exponent], out=scaled)
            before = one

    return order, scores


def _best(shard: Shard, candidates: Iterable[tuple[Choice, TopItems]]) -> BestChoice[Choice]:
    users = sample_validation_users(shard.train.shape[0], seed=0)
    measured = (BestChoice(choice, top, measure_validation(shard, top, users)) for choice, top in candidates)
    return max(measured, key=lambda chosen: chosen.validation.primary_value)


CLOSED_FORMS = ("lowpass", "ridge", "ease")
"""By name, the weakest first as a rule."""


def closed_form_tops(
    shard: Shard, spectrum: Spectrum, ridge: Filter, *, ease_side: int = EASE_SIDE, interrupt: Interrupt = NEVER
) -> dict[str, TopItems | None]:
    """Computes the top lists of each of CLOSED_FORMS.

    ridge: the best filter of this spectrum. ease_side: where both sides of the graph exceed it, EASE is None.
    """
    ease = best_ease(shard, ease_side, interrupt)
    return {
        "lowpass": best_low_pass(shard, spectrum, interrupt).top,
        "ridge": filter_top(ridge, spectrum, shard.train),
        "ease": None if ease is None else ease.top,
    }
