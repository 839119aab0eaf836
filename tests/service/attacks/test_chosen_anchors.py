"""Anchors cannot ask questions.

Who: the aggregator, in any mode. Each rho is one linear equation of the logarithms of a client's spectrum, with the
anchor's kernel as its coefficients. With as many chosen kernels as eigenvalues it solved for all of them, to 2e-14.
With the kernels of honest anchors, one a seed, it did the same: `test_honest_anchors`. And where the silo's own kernels
are trained, one honest anchor was a new question in each round.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from client_service.boundary.anchors import NAME, AnchorInputs, KnownAnchors
from client_service.boundary.ledger import Ledger
from shared.errors import PrivacyError
from shared.method.anchor import declared_size, draw_anchor
from shared.method.divergence import align_kernels, divergence, kernel, round_divergence
from shared.method.settings import AnchorSettings, MethodSettings
from shared.protocol.schemas import AnchorOut
from tests.support.small import GRAPH, SMALL

if TYPE_CHECKING:
    from tests.support.misled import Mislead

pytestmark = pytest.mark.anyio


def chosen(length: int, place: int) -> np.ndarray:
    """A kernel that is nearly all in one place."""
    values = np.full(length, 0.5 / (length - 1))
    values[place] = 0.5
    return values


async def test_a_client_answers_no_anchor_but_the_one_that_follows_from_the_settings(mislead: Mislead) -> None:
    length, each = SMALL.cutoff - 2, GRAPH.model_copy(update={"every_round": True})
    kernel_of = {"kernel": lambda number: chosen(length, number - 1)}
    async with mislead(1, secure=False, anchor=each, rounds=length, **kernel_of) as clients:
        await clients.require_refused("the kernel that follows from the run's settings")
        assert clients.liar.uploads == {}


def solve(kernels: np.ndarray, rhos: np.ndarray) -> np.ndarray:
    """The kernel q of a client with rho = sum p ln(p / q) for each of the kernels p."""
    logarithms = np.linalg.solve(kernels, (kernels * np.log(kernels)).sum(axis=1) - rhos)
    found = np.exp(logarithms)
    return np.asarray(found / found.sum())


SIZE = AnchorSettings(users=60, items=40, edges=300)
METHOD = MethodSettings(cutoff=24, anchor=SIZE)


def silo_kernel(length: int) -> np.ndarray:
    """The spectrum of some silo."""
    return kernel(np.sort(np.random.default_rng(5).uniform(0.05, 0.8, length)))


def test_honest_anchors_of_many_seeds_read_a_spectrum_from_exact_rhos_and_not_from_rounded_ones() -> None:
    """Why rho is rounded, and why a silo answers for a limited number of anchors: rounding alone only slows this."""
    drawn = [draw_anchor(METHOD, declared_size(SIZE), seed=seed, number=0) for seed in range(60)]
    length = min(len(one) for one in drawn)
    own = silo_kernel(length)
    kernels = np.array([align_kernels(one, own)[0] for one in drawn])[:length]
    rhos = np.array([divergence(one, own) or 0.0 for one in drawn])[:length]
    rounded = np.array([round_divergence(rho) for rho in rhos])
    assert np.abs(solve(kernels, rhos) - own).max() < 1e-6
    assert np.abs(solve(kernels, rounded) - own).max() > 0.01


def said(seed: int) -> tuple[AnchorInputs, AnchorOut]:
    drawn = draw_anchor(METHOD, declared_size(SIZE), seed=seed, number=0)
    return AnchorInputs(METHOD, seed, 1), AnchorOut(run="run-1", round=1, kernel=tuple(drawn), source="declared")


def test_a_silo_answers_for_so_many_anchors_of_its_shard_and_no_more_over_restarts_too(tmp_path: Path) -> None:
    first = KnownAnchors(Ledger(tmp_path / NAME), "shard", limit=3, agreed=None)
    for seed in (1, 2, 1):
        first.check_anchor(*said(seed))
    again = KnownAnchors(Ledger(tmp_path / NAME), "shard", limit=3, agreed=None)
    again.check_anchor(*said(3))
    with pytest.raises(PrivacyError, match="at most 3 different anchors for one shard"):
        again.check_anchor(*said(4))
    again.check_anchor(*said(2))  # an earlier one tells nothing new
    KnownAnchors(Ledger(tmp_path / NAME), "another shard", limit=3, agreed=None).check_anchor(*said(4))
    KnownAnchors(Ledger(tmp_path / NAME), "shard", limit=None, agreed=None).check_anchor(*said(4))


def test_where_kernels_are_trained_each_round_of_each_run_is_a_question_of_its_own(tmp_path: Path) -> None:
    """Before, one anchor was counted once, and each further round told ten more digits of the kernel that it had."""
    method = METHOD.model_copy(update={"signal": "trained"})
    known, heard = KnownAnchors(Ledger(tmp_path / NAME), "shard", limit=3, agreed=None), said(1)[1]

    def ask(run: str, number: int) -> None:
        known.check_anchor(AnchorInputs(method, 1, number, run), heard)

    for run, number in (("run-1", 1), ("run-1", 2), ("run-1", 2), ("run-2", 1)):
        ask(run, number)
    with pytest.raises(PrivacyError, match="at most 3 different anchors for one shard"):
        ask("run-2", 2)
