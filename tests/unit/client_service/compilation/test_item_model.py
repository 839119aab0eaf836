"""A compiled model answers baskets as the trained one does, in whichever form, and from whole folders alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import sparse

from client_service.compilation import item_model as module
from client_service.compilation.exact_arrays import exact_arrays
from client_service.compilation.item_model import (
    EXACT,
    FormBuilder,
    Option,
    choose_form,
    compile_in_memory,
    compile_model,
)
from client_service.compilation.item_table import _find_furthest, all_entries, fewer_entries, fold_in, strongest_entries
from client_service.compilation.shard import compile_shard
from client_service.compiled.arrays import read_folder_head
from client_service.compiled.model import BasketRanker, CompiledModelHead, Relevance, open_model
from client_service.compiled.publication import HEAD
from client_service.compiled.shard import open_shard
from client_service.data.interactions import Shard
from client_service.model_store.model_files import ServedItems
from client_service.models.closed_form import ease as ease_module
from client_service.models.closed_form import full_spectrum
from client_service.models.closed_form.least_squares import Weighting
from client_service.models.initial_filter import Filter
from client_service.models.ranker import Rows
from client_service.models.score_fusion import ChosenPart, Recipe
from client_service.runtime.interruption import NEVER, Interrupt, Interrupted
from client_service.training.start_choice import Choice, build_start_model
from shared.errors import DataError
from shared.method.settings import MethodSettings
from shared.method.spectrum import low_spectrum
from shared.method.tensors import EXCHANGES

METHOD = MethodSettings(width=8, layers=2, cutoff=8, catalogue=40)
START = Filter(8, 0.3, 0.25)
EVERY_PART = Recipe(
    (
        ChosenPart("filter", 10.0, 2.0),
        ChosenPart("squares", Weighting((3, 5), 0.3, 0.01), 1.0),
        ChosenPart("ease", 30.0, 1.5),
        ChosenPart("frequency", 0.0, 0.2),
        ChosenPart("edlae", 0.4, 0.5),
        ChosenPart("rp3beta", 0.4, 0.5),
    )
)
ONE_PART = Recipe((ChosenPart("ease", 30.0, 1e6),))
OF_ITEMS = sorted(name for name, tensors in EXCHANGES.items() if tensors.task == "items")
BASKETS: list[Rows] = [np.array(rows) for rows in ([3], [1, 2, 5], [0, 11, 25, 39], list(range(0, 40, 4)))]


@pytest.fixture
def listed(planted: Shard) -> Shard:
    return replace(planted, places=np.arange(40))


def serve(shard: Shard, name: str = "lgcn", recipe: Recipe = EVERY_PART, moved: float = 0.0) -> ServedItems:
    """A model at rest. moved: by how much training has moved each parameter, at random."""
    begun = build_start_model(
        shard, low_spectrum(shard.train, 8), METHOD, name, Choice(start=START, recipe=recipe), NEVER
    )
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in begun.model.parameters():
            parameter += moved * torch.randn(parameter.shape, generator=generator)
    begun.model.encoder.prepare_inference()
    return ServedItems("run-1.2", begun.model, ranker=begun.model.freeze().with_fusion(begun.fusion, begun.codes))


def rank_exactly(served: ServedItems, basket: Rows, k: int) -> tuple[Rows, np.ndarray]:
    """By the trained model, without the basket's own items."""
    row = np.zeros((1, 40), dtype=np.float32)
    row[0, basket] = 1.0
    side = fold_in(served, sparse.csr_array(row))
    rows, scores = served.ranker.top_k_with_scores(side, row > 0, k)
    return rows[0], scores[0]


def form_of(builder: FormBuilder, option: Option) -> BasketRanker:
    table, exact, arrays = builder.build(option)
    return BasketRanker(arrays, table, exact)


@pytest.mark.parametrize("moved", [0.0, 0.3])
@pytest.mark.parametrize("name", OF_ITEMS)
def test_the_exact_form_ranks_baskets_as_the_trained_model_does(listed: Shard, name: str, moved: float) -> None:
    """Whatever the encoder, trained or not, with every scorer that it can be fused with."""
    served = serve(listed, name, moved=moved)
    if moved:
        served.model.encoder.drop_training_state()  # as a publisher does
    found = form_of(FormBuilder(served, listed), EXACT)
    for basket in BASKETS:
        rows, scores = rank_exactly(served, basket, 12)
        ranked = found.rank(basket, basket, 12)
        np.testing.assert_allclose(ranked.scores, scores, rtol=2e-3, atol=2e-4)
        assert len(set(ranked.rows) & set(rows)) >= 11
        np.testing.assert_allclose(found.scores_at(basket, ranked.rows), ranked.scores, rtol=1e-4, atol=1e-5)


def test_the_exact_form_has_the_scorers_of_sparse_graphs(listed: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    """The filter without a matrix of all items, and EASE by the users, as large catalogues have them."""
    monkeypatch.setattr(full_spectrum, "DENSE_ITEMS", 0)
    monkeypatch.setattr(ease_module, "DENSE_ITEMS", 0)
    recipe = Recipe((ChosenPart("filter", 10.0, 2.0), ChosenPart("squares", Weighting((3,), 0.3, 0.01), 1.0)))
    served = serve(listed, recipe=recipe)
    by_users = ease_module.ease(sparse.csr_array(listed.train[:25]), 30.0)
    assert isinstance(by_users, ease_module.UserWeights)
    parts = (*served.ranker.fusion.parts, (1.5, by_users))
    fusion = replace(served.ranker.fusion, parts=parts)
    served = replace(served, ranker=served.ranker.with_fusion(fusion, fusion.encode(listed.train)))
    found = form_of(FormBuilder(served, listed), EXACT)
    for basket in BASKETS:
        rows, scores = rank_exactly(served, basket, 12)
        ranked = found.rank(basket, basket, 12)
        np.testing.assert_allclose(ranked.scores, scores, rtol=2e-3, atol=2e-4)
        assert ranked.rows.tolist() == rows.tolist()


def test_a_dense_table_is_the_linear_part_of_the_score(listed: Shard) -> None:
    """One loud linear scorer: its ranking, and what each item of a basket adds, are those of the trained model."""
    served = serve(listed, recipe=ONE_PART)
    builder = FormBuilder(served, listed)
    dense = form_of(builder, Option("dense", 0))
    (_, part), linear = served.ranker.fusion.parts[0], builder.linear
    assert linear is not None
    weights = part.contributions(np.arange(40), np.arange(40))  # type: ignore[attr-defined]
    np.fill_diagonal(weights, 0.0)
    made = linear.make_rows(np.arange(40))
    np.testing.assert_allclose(made / np.abs(made).max(), weights / np.abs(weights).max(), atol=1e-4)
    for basket in BASKETS[1:]:
        rows, _ = rank_exactly(served, basket, 5)
        assert dense.rank(basket, basket, 5).rows.tolist() == rows.tolist()
        columns = np.array([7, 2, 30])
        added, scores = dense.contributions(basket, columns), dense.scores_at(basket, columns)
        np.testing.assert_allclose(added.sum(axis=0), scores, rtol=1e-3, atol=1e-2)  # but for the bias, which is small


def test_a_table_of_all_entries_is_the_dense_one(listed: Shard) -> None:
    served = serve(listed)
    builder = FormBuilder(served, listed)
    linear = builder.linear
    assert linear is not None
    whole = all_entries(linear, NEVER)
    columns, values = strongest_entries(linear, 40, NEVER)
    np.testing.assert_array_equal(columns, np.broadcast_to(np.arange(40), (40, 40)))
    np.testing.assert_array_equal(values, whole)
    some, kept = fewer_entries((columns, values), 5)
    least = np.sort(np.abs(whole.astype(np.float32)), axis=1)[:, -5]
    assert (np.abs(kept.astype(np.float32)).min(axis=1) >= least).all()
    np.testing.assert_array_equal(np.take_along_axis(whole, some.astype(np.int64), 1), kept)


def test_entries_of_many_items_are_the_furthest_from_nothing() -> None:
    """A sample says from where on an entry can be among them; where it says too much, the whole row is looked at."""
    generator = np.random.default_rng(3)
    usual = generator.standard_normal((20, 5000)).astype(np.float32)
    misleading = np.zeros((20, 5000), dtype=np.float32)
    misleading[:, ::8] = 2.0 + generator.random((20, 625), dtype=np.float32)
    for rows in (usual, misleading):
        chosen = _find_furthest(np.abs(rows), 100)
        expected = np.sort(np.abs(rows), axis=1)[:, -100:]
        np.testing.assert_array_equal(np.sort(np.take_along_axis(np.abs(rows), chosen, 1), axis=1), expected)


@pytest.mark.parametrize("moved", [0.0, 0.3])
def test_rescored_lists_are_those_of_the_exact_form(
    listed: Shard, moved: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a trained head too. How far each scorer's scores spread is the usual one: few items change places."""
    monkeypatch.setattr(module, "ENTRIES", (30, 40))
    builder = FormBuilder(serve(listed, moved=moved), listed)
    rescored, exact = form_of(builder, Option("rescored", 30)), form_of(builder, EXACT)
    shared = []
    for user in range(40):
        basket = module.basket_of(listed.train, user)
        lists = (one.rank(basket, basket, 10).rows for one in (rescored, exact))
        shared.append(len(set.intersection(*map(set, lists))))
    assert np.mean(shared) >= 9.5


def test_a_shorter_list_is_the_beginning_of_a_longer_one(listed: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ENTRIES", (30, 40))
    builder = FormBuilder(serve(listed), listed)
    mask = np.zeros(40, dtype=bool)
    mask[[4, 5]] = True
    for option in (Option("dense", 0), Option("truncated", 40), EXACT):
        ranker = form_of(builder, option)
        long, short = ranker.rank(BASKETS[1], mask, 60), ranker.rank(BASKETS[1], mask, 7)
        assert long.rows[:7].tolist() == short.rows.tolist()
        assert (long.rows[38:] == -1).all() and not set(long.rows) & {4, 5}
        assert len(set(long.rows[:38])) == 38 and (np.diff(long.scores[:38]) <= 0).all()
        assert np.isneginf(long.scores[38:]).all()


def test_the_smallest_form_that_is_no_worse_is_chosen_and_kept(listed: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    """And anew for a model of other parts."""
    monkeypatch.setattr(module, "NO_WORSE", -1.0)
    builder = FormBuilder(serve(listed, recipe=ONE_PART), listed)
    chosen = choose_form(builder)
    assert chosen.option.form == "dense" and "dense" in chosen.why
    monkeypatch.setattr(module, "NO_WORSE", 1.0)
    assert choose_form(builder).option == EXACT
    monkeypatch.setattr(module, "LEAST_JUDGING", 10**6)
    assert "fewer than" in choose_form(builder).why


def test_a_silo_that_fits_on_everything_chooses_by_its_held_out_items(
    listed: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its shard has none of them; and a score of the table means what the model's own score beside it means."""
    monkeypatch.setattr(module, "NO_WORSE", -1.0)
    everything = listed.with_all_data
    served = replace(serve(everything, recipe=ONE_PART), relevance=Relevance(2.0, -3.0))
    assert "fewer than" in choose_form(FormBuilder(served, everything)).why
    builder = FormBuilder(served, everything, judged=listed)
    assert choose_form(builder).option.form == "dense"
    found = compile_in_memory(served, everything, judged=listed)
    users, columns = np.arange(10), np.tile(np.arange(40), (10, 1))
    own = np.stack(
        [form_of(builder, Option("dense", 0)).scores_at(everything.train[[u]].indices, np.arange(40)) for u in users]
    )
    told, exact = found.basket_relevance.apply(own), served.relevance.apply(served.ranker.scores(users, columns))
    assert np.abs(told - exact).mean() < 0.1 * exact.std() + 0.01 and found.basket_relevance != served.relevance


@pytest.mark.parametrize(("least", "users"), [(1.0, 8), (-1.0, 16), (None, 24)])
def test_as_many_users_judge_a_form_as_it_takes(
    listed: Shard, monkeypatch: pytest.MonkeyPatch, least: float | None, users: int
) -> None:
    """Few reject a bad form, more accept a good one, and all judge one in between."""
    monkeypatch.setattr(module, "ACCEPTING", 16)
    builder = FormBuilder(serve(listed), listed)
    form = form_of(builder, Option("dense", 0))
    gains = iter(np.linspace(-0.5, 0.5, 8).tolist() * 3)
    monkeypatch.setattr(module._Judge, "_measure", lambda *_: np.array([next(gains) for _ in range(8)]))
    monkeypatch.setattr(module._Judge, "_judge_exact", lambda *_: np.zeros(8))
    monkeypatch.setattr(module, "NO_WORSE", 0.0 if least is None else least)
    good, interval = module._Judge(builder, (8, 16, 24)).is_no_worse(form)
    assert good == (least == -1.0) and f"of {users} users" in interval


def test_small_baskets_are_ranked_exactly_where_a_table_ranks_them_worse(
    listed: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the larger ones by the table."""
    ask = module._Judge.is_no_worse

    def only_large(judge: module._Judge, ranker: BasketRanker) -> tuple[bool, str]:
        good = int(np.diff(judge._baskets.indptr).max()) > 3
        return good, ask(judge, ranker)[1]

    monkeypatch.setattr(module._Judge, "is_no_worse", only_large)
    builder = FormBuilder(serve(listed), listed)
    chosen = choose_form(builder)
    assert (chosen.option.form, chosen.option.few) == ("dense", 8) and "of 3 items" in chosen.why
    found = BasketRanker(chosen.arrays, chosen.table, chosen.exact)
    dense, exact = form_of(builder, Option("dense", 0)), form_of(builder, EXACT)
    small, large = BASKETS[2], BASKETS[3]
    assert found.is_quick(large) and not found.is_quick(small) and not exact.is_quick(large)
    for basket, alike in ((small, exact), (large, dense)):
        columns = np.arange(40)
        np.testing.assert_array_equal(found.scores_at(basket, columns), alike.scores_at(basket, columns))
        np.testing.assert_array_equal(found.rank(basket, basket, 9).rows, alike.rank(basket, basket, 9).rows)
        np.testing.assert_array_equal(found.contributions(basket, columns), alike.contributions(basket, columns))


def test_drawn_items_of_a_basket_are_some_of_its_own(listed: Shard) -> None:
    some = module.pick_items(sparse.csr_array(listed.train), 3, np.random.default_rng(0))
    assert (np.diff(some.indptr) == 3).all() and ((some.toarray() > 0) <= (listed.train.toarray() > 0)).all()


def test_a_choice_holds_for_the_next_model_of_the_same_parts(
    listed: Shard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "NO_WORSE", -1.0)
    served = serve(listed, recipe=ONE_PART)
    first = read_folder_head(compile_model(served, listed, tmp_path), CompiledModelHead)
    assert first.form == "dense"
    monkeypatch.setattr(module, "NO_WORSE", 1.0)
    later = replace(served, version="run-1.3")
    again = read_folder_head(compile_model(later, listed, tmp_path, first), CompiledModelHead)
    assert (again.form, again.version, again.why) == ("dense", "run-1.3", first.why)
    grown = first.model_copy(update={"chosen_pairs": 2 * listed.train.nnz})
    other = serve(listed, recipe=EVERY_PART)
    for model, head in ((later, grown), (other, first)):
        assert read_folder_head(compile_model(model, listed, tmp_path, head), CompiledModelHead).form == "exact"


def test_a_compiled_model_is_read_from_its_folder(listed: Shard, tmp_path: Path) -> None:
    """As it is in memory; a folder that is there already is used again, with the lists that it has."""
    served = serve(listed)
    folder, shard = compile_model(served, listed, tmp_path), open_shard(compile_shard(listed, tmp_path))
    (tmp_path / folder.name / "list-ready.npy").touch()
    assert compile_model(served, listed, tmp_path) == folder
    found, in_memory = open_model(folder, shard), compile_in_memory(served, listed)
    assert (found.version, found.form, found.lists_ready) == ("run-1.2", in_memory.form, 0)
    assert found.list_of(0) is None
    for basket in BASKETS:
        one, other = (model.rank_basket(basket, basket, 10) for model in (found, in_memory))
        assert one.rows.tolist() == other.rows.tolist()
    np.testing.assert_array_equal(found.directions, served.directions)


@pytest.mark.parametrize("damage", ["cut", "gone", "head", "other shard"])
def test_a_damaged_folder_is_refused_with_what_to_do(
    listed: Shard, shard_of: Callable[..., Shard], tmp_path: Path, damage: str
) -> None:
    shard = open_shard(compile_shard(listed, tmp_path))
    folder = compile_model(serve(listed), listed, tmp_path)
    if damage == "cut":
        (folder / "directions.npy").write_bytes((folder / "directions.npy").read_bytes()[:-100])
    elif damage == "gone":
        (folder / "list-scores.npy").unlink()
    elif damage == "head":
        (folder / HEAD).write_text("{}", encoding="utf-8")
    else:
        other = shard_of(*(part.toarray()[::-1] for part in (listed.train, listed.valid, listed.test)))
        folder = compile_model(serve(other), other, tmp_path)
    with pytest.raises(DataError, match="remove this folder"):
        open_model(folder, shard)


def test_an_interrupted_compilation_leaves_nothing(listed: Shard, tmp_path: Path) -> None:
    interrupt = Interrupt()
    interrupt.set()
    with pytest.raises(Interrupted):
        compile_model(serve(listed), listed, tmp_path, interrupt=interrupt)
    assert not list(tmp_path.glob("*"))


def test_lists_that_the_disk_has_no_room_for_are_an_error_at_once(
    listed: Shard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file with holes would end the process that fills it, once the disk is full. No folder is left."""
    folder = compile_model(serve(listed), listed, tmp_path / "room")
    lists = folder / "list-items.npy"
    assert lists.stat().st_blocks * 512 >= lists.stat().st_size

    def refuse(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", refuse)
    with pytest.raises(OSError, match="No space left"):
        compile_model(serve(listed), listed, tmp_path / "none")
    assert not list((tmp_path / "none").glob("*"))


def test_exact_arrays_know_every_encoder_and_scorer(listed: Shard) -> None:
    """A further one that nobody has compiled is an error here before it is one in a silo."""
    for name in OF_ITEMS:
        served = serve(listed, name)
        head, arrays = exact_arrays(served, [(0.0, 0.0)] * len(served.ranker.fusion.parts))
        assert len(head.parts) == len(served.ranker.fusion.parts) and "item-embedding" in arrays
