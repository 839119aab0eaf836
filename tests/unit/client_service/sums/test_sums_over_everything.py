"""A silo that fits its models on everything adds everything to exact sums, and judges by what it could have without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse

from client_service.data.interaction_files import save_shard
from client_service.data.interactions import Shard, build_shard
from client_service.federation.basis_run import Sums
from client_service.federation.client_run import basis_folder, build_run_context, open_basis_run
from client_service.model_store.model_files import freeze
from client_service.runtime.interruption import NEVER
from client_service.sums.basis import CommonBasis, make_exact_basis
from client_service.sums.statistics import (
    catalogue_matrix,
    count_pairs,
    restrict_to_training,
    training_digest,
    weigh_pairs,
)
from client_service.sums.storage import ADDED, has_mark, load_basis, save_basis, save_mark
from client_service.tasks.items import ITEMS, begin_training, judge_test_lists
from client_service.tasks.task import RunContext
from client_service.training.start_choice import common_start
from shared.method.parameters import Parameters
from shared.method.settings import BasisSettings
from shared.sums.item_basis import DEGREES, PAIRS, WEIGHTED
from tests.support.small import SMALL, small_client

OTHERS = 60  # users of other silos, two communities that the planted ones do not have


def listed(shard: Shard) -> Shard:
    return replace(shard, places=np.arange(len(shard.item_ids)), catalogue="c")


def sums(matrices: Sequence[sparse.csr_array]) -> Sums:
    counted = [count_pairs(one) for one in matrices]
    return {name: sum(one[name] for one in counted) for name in (DEGREES, PAIRS)}  # type: ignore[misc]


def others(seed: int = 5) -> sparse.csr_array:
    drawn = np.random.default_rng(seed).random((OTHERS, 40)) < 0.2
    return sparse.csr_array(drawn.astype(np.float64))


@pytest.mark.parametrize("least", [1, 3])
def test_what_is_judged_by_is_the_sum_with_the_training_pairs_alone(planted: Shard, least: int) -> None:
    shard = listed(planted)
    train, everything = catalogue_matrix(shard, 40), catalogue_matrix(shard.with_all_data, 40)
    whole, some = (make_exact_basis(hidden(sums([others(), one]), least), 0.25) for one in (everything, train))
    found = restrict_to_training(replace(whole, added_all_data=True), shard)
    assert found.pairs is not None and some.pairs is not None and whole.pairs is not None
    np.testing.assert_array_equal(found.degrees, some.degrees)
    np.testing.assert_array_equal(found.pairs, some.pairs)
    assert (whole.pairs > some.pairs).any()
    assert restrict_to_training(whole, shard) is whole  # others' sums, or those of an earlier version
    assert restrict_to_training(replace(whole, added_all_data=True), shard.with_all_data).pairs is whole.pairs


def hidden(counted: Sums, least: int) -> Sums:
    """As the aggregator hands them out."""
    return {**counted, PAIRS: np.where(counted[PAIRS] >= least, counted[PAIRS], 0).astype(np.uint32)}


def test_figures_do_not_rise_by_held_out_pairs_in_the_sums(planted: Shard, tmp_path: Path) -> None:
    """Without taking its own part away the silo read its own test items in the sums."""
    shard, figures = listed(planted), {}
    few = sparse.csr_array(np.tile(np.arange(40) % 5 == 0, (8, 1)).astype(np.float64))
    whole = make_exact_basis(sums([few, catalogue_matrix(shard.with_all_data, 40)]), 0.25)
    some = make_exact_basis(sums([few, catalogue_matrix(shard, 40)]), 0.25)
    for name, basis in (("some", some), ("judged", replace(whole, added_all_data=True)), ("leaked", whole)):
        method = SMALL.model_copy(update={"start": "exact"})
        place = RunContext("shop", "run-1", 0, method, tmp_path / name, basis=basis)
        training = begin_training(place, shard, torch.device("cpu"), NEVER)[0]
        figures[name] = judge_test_lists(shard, freeze("", training), NEVER).primary_value
    assert figures["judged"] == pytest.approx(figures["some"], abs=0.02)  # counts below the smallest seen are hidden
    assert figures["leaked"] > figures["judged"] + 0.03


@pytest.mark.parametrize("fusion", [True, False])
def test_a_common_start_does_not_know_the_held_out_pairs_in_the_sums(
    planted: Shard, tmp_path: Path, *, fusion: bool
) -> None:
    """The embeddings began in frequencies of the whole sum, in which are the pairs by which they are judged."""
    shard, found = listed(planted), {}
    few = others()[:20]  # of whose pairs some are counted once, so that none is hidden
    whole = make_exact_basis(sums([few, catalogue_matrix(shard.with_all_data, 40)]), 0.25)
    some = make_exact_basis(sums([few, catalogue_matrix(shard, 40)]), 0.25)
    for name, basis in (("some", some), ("judged", replace(whole, added_all_data=True)), ("leaked", whole)):
        method = SMALL.model_copy(update={"start": "common", "fusion": fusion, "cutoff": 40})
        place = RunContext("shop", "run-1", 0, method, tmp_path / name, basis=basis)
        training = begin_training(place, shard, torch.device("cpu"), NEVER)[0]
        found[name] = judge_test_lists(shard, freeze("", training), NEVER).primary_value
    assert found["judged"] == pytest.approx(found["some"], abs=1e-6)
    assert found["leaked"] > found["judged"] + 0.03


def test_columns_of_a_common_start_are_those_of_the_sum_that_all_silos_have(planted: Shard) -> None:
    shard = listed(planted)
    whole = replace(
        make_exact_basis(sums([others(), catalogue_matrix(shard.with_all_data, 40)]), 0.25), added_all_data=True
    )
    method = SMALL.model_copy(update={"start": "common"})
    own, all_silos = common_start(whole, shard, method), common_start(whole, shard.with_all_data, method)
    assert own is not None and all_silos is not None
    assert not np.allclose(own.items, all_silos.items)
    alike = np.sum(own.items * all_silos.items, axis=0)
    assert (alike[:4] > 0.8).all() and (alike > 0).all()


@pytest.mark.parametrize(
    ("kind", "everything"), [("exact", True), ("exact", False), ("iterated", True), ("noised", True)]
)
def test_what_is_counted_and_what_the_silo_remembers_of_it(
    planted: Shard, tmp_path: Path, kind: str, everything: bool
) -> None:
    basis = BasisSettings(kind="exact", epsilon=8.0) if kind == "noised" else BasisSettings(kind=kind, rank=4, rounds=2)
    method = SMALL.model_copy(update={"basis": basis, "catalogue": 40})
    shard = build_shard("client-1", planted.events_with_ids(), None)
    save_shard(tmp_path / "client-1", shard)
    (tmp_path / "catalogue.txt").write_text("\n".join(shard.item_ids), encoding="utf-8")
    settings = small_client(
        tmp_path / "client-1",
        tmp_path / "state",
        method=method,
        fit_everything=everything,
        catalogue=tmp_path / "catalogue.txt",
        policy={"common_basis": "open"},
    )
    shard = ITEMS.read(settings)
    run = open_basis_run(settings, ITEMS, shard, build_run_context(settings, "run-1", 0, method), 3)
    counts_all = everything and kind == "exact"
    counted = shard.with_all_data if counts_all else shard
    assert run.summed is not None and run.summed.training == training_digest(shard)
    assert run.summed.all_data == training_digest(
        shard.with_all_data
    )  # whichever is counted: sums of both are compared
    run.context = replace(run.context, round=1)
    added = run.arrays()
    if kind == "noised":
        expected = weigh_pairs(catalogue_matrix(counted, 40))[WEIGHTED]
        np.testing.assert_array_equal(added[WEIGHTED], expected)
        return
    np.testing.assert_array_equal(added[DEGREES], np.diff(sparse.csc_array(catalogue_matrix(counted, 40)).indptr))
    if kind == "iterated":  # one round more would follow
        return
    run.skip_round(Parameters(added), 1)
    run.finish()
    assert run.basis is not None and run.basis.added_all_data == counts_all
    kept = load_basis(basis_folder(settings), run.basis.digest)
    assert kept is not None and (kept.added_all_data, kept.included) == (counts_all, True)
    run.withdraw()  # it was refused, or too late: the silo adds its own pairs itself, and takes none away
    run.finish()
    assert (run.basis.added_all_data, run.basis.included) == (False, False)


def test_who_was_away_when_sums_were_made_takes_nothing_away(planted: Shard, tmp_path: Path) -> None:
    """Such a silo makes the basis from what the others have summed."""
    basis = make_exact_basis(sums([others()]), 0.25)
    save_basis(tmp_path, "run-1", basis)
    kept = load_basis(tmp_path, basis.digest)
    assert isinstance(kept, CommonBasis) and restrict_to_training(kept, listed(planted)) is kept


def test_marks_of_earlier_versions_are_read_and_each_run_keeps_its_own(tmp_path: Path) -> None:
    """They had one run in the file; with several sums the mark of one run must not take that of another away."""
    (tmp_path / ADDED).write_text("run-3", encoding="utf-8")
    assert has_mark(tmp_path, ADDED, "run-3") and not has_mark(tmp_path, ADDED, "run-30")
    for run in ("run-4", "run-4"):
        save_mark(tmp_path, ADDED, run)
    assert all(has_mark(tmp_path, ADDED, run) for run in ("run-3", "run-4")) and not has_mark(tmp_path, ADDED, "run")
    assert (tmp_path / ADDED).read_text("utf-8").split() == ["run-3", "run-4"]
