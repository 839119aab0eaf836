"""The attack harness: who is in a drawn shard, what leaves it in each mode, what each attacker sees, and two worlds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from benchmarks.attacks import shadows, views, worlds
from benchmarks.attacks.noise import LEAST, gaussian_auc, largest_auc, private_mode, settings_for_epsilon
from benchmarks.attacks.population import Population, draw_populations, draw_targets, make_shard
from benchmarks.attacks.run import HIDING_PLACE, check, hiding_place_features, plant_embedding, render
from benchmarks.attacks.shadows import (
    INTERACTIONS,
    ITEM,
    PAIR,
    POPULAR,
    SIZE,
    USER,
    Rows,
    Series,
    answer_questions,
    collect_transcripts,
    draw_shadow,
    play_replays,
)
from benchmarks.attacks.silo import (
    AttackedRun,
    StartedClient,
    join_arrays,
    open_mode,
    play_federation,
    play_run,
    split_arrays,
    start_client,
)
from benchmarks.attacks.views import Replays, Transcripts
from benchmarks.attacks.worlds import Target, compare_worlds, complete_draw, make_pair, remove_target, squared_distance
from client_service.privacy.accounting import planned_epsilon
from shared.errors import DataError
from shared.method.declaration import TensorSpec
from shared.method.parameters import Parameters
from shared.method.tensors import ITEM_TABLE

CONFIG: dict[str, Any] = {
    "seed": 0,
    "users": 40,
    "items": 50,
    "hosts": 5,
    "coins": 12,
    "rare": 4,
    "rounds": 2,
    "method": {"width": 8, "cutoff": 10, "fusion": False},
}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Any:
    with threadpool_limits(1):
        yield


@pytest.fixture(scope="module")
def populations() -> tuple[Population, Population]:
    return draw_populations("synthetic", CONFIG)


@pytest.fixture(scope="module")
def population(populations: tuple[Population, Population]) -> Population:
    return populations[0]


@pytest.fixture(scope="module")
def run() -> AttackedRun:
    return AttackedRun.from_config(CONFIG)


@pytest.fixture(scope="module")
def silo(population: Population, run: AttackedRun) -> StartedClient:
    return start_client(make_shard(population, draw_shadow(population, 0, 0)).shard, run)


def test_a_shard_has_just_what_was_drawn(population: Population) -> None:
    draw = draw_shadow(population, 0, 3)
    made = make_shard(population, draw)
    graph = made.training_graph(population.train.shape).toarray()
    expected = population.train.toarray() * draw.users[:, None]
    expected[population.hosts[~draw.pairs], population.pairs[~draw.pairs]] = 0.0
    expected[:, population.rare[~draw.rare]] = 0.0
    assert (graph == expected).all() and made.shard.train.nnz == expected.sum() > 0
    assert set(made.users) <= set(np.flatnonzero(draw.users)) and draw.users[population.hosts].all()
    assert not set(made.items) & set(population.rare[~draw.rare].tolist())
    assert np.diff(made.shard.train.indptr).min() >= 1 and made.shard.places is made.items


def test_coins_are_fair_and_no_silo_s_taste_moves_them(population: Population) -> None:
    draws = [draw_targets(population, np.random.default_rng([1, number])) for number in range(400)]
    coins = np.stack([draw.users[population.coins] for draw in draws]).astype(float)
    taste = np.stack([draw.users[population.background] for draw in draws]) @ population.taste[population.background]
    assert coins.mean() == pytest.approx(0.5, abs=0.02)
    together = [abs(np.corrcoef(coins[:, k], taste)[0, 1]) for k in range(coins.shape[1])]
    assert max(together) < 0.2 and taste.std() > 2.0


def test_both_populations_are_other_users_with_the_same_items(populations: tuple[Population, Population]) -> None:
    own, other = (one.train.toarray() for one in populations)
    assert own.shape == other.shape and not (own[:, None] == other[None]).all(axis=2).any()
    with pytest.raises(DataError, match="expected 4000 users"):
        draw_populations("synthetic", CONFIG | {"users": 2000})


def test_the_questions_truth_is_what_the_shards_hold(population: Population) -> None:
    truth = answer_questions(population, 0, slice(2, 4), 4)
    draws = [draw_shadow(population, 0, number) for number in range(4)]
    assert (truth[USER] == [draw.users[population.coins] for draw in draws]).all()
    assert (truth[PAIR] == [draw.pairs for draw in draws]).all()
    assert not (truth[ITEM] & ~np.stack([draw.rare for draw in draws])).any() and truth[ITEM].any()
    sizes = [make_shard(population, draw).shard.train.nnz for draw in draws]
    assert truth[INTERACTIONS].sum(axis=1).tolist() == sizes
    assert truth[SIZE].ravel().tolist() == [size > np.median(sizes[:2]) for size in sizes]


def test_an_item_is_popular_where_its_share_is_above_what_the_attacker_knows(population: Population) -> None:
    truth = answer_questions(population, 0, slice(3, 6), 6)[POPULAR]
    graphs = [
        make_shard(population, draw_shadow(population, 0, n)).training_graph(population.train.shape).toarray()
        for n in range(6)
    ]
    item = int(np.setdiff1d(np.arange(CONFIG["items"]), population.rare)[7])
    shares = [graph[:, item].sum() / graph.sum() for graph in graphs]
    assert truth[:, 7].tolist() == [share > np.median(shares[:3]) for share in shares]


def test_a_replayed_federation_is_the_federation(population: Population, run: AttackedRun) -> None:
    """Who is played against what the others sent in a real federation sends what it sent there, to the bit."""
    found = [make_shard(population, draw_shadow(population, 0, number)).shard for number in range(3)]
    named = [replace(shard, name=f"client-{n}") for n, shard in enumerate(found, start=1)]
    first, *others = play_federation(run, named)
    again = play_run(run, start_client(named[0], run), others, open_mode(np.random.default_rng(0)))
    assert (again.sent == first.sent).all() and (again.received == first.received).all()
    assert (again.scalars == first.scalars).all()
    assert (first.received[1] != first.received[0]).any() and (first.sent != first.received).any()


def test_vectors_go_back_to_the_arrays_they_came_from(silo: StartedClient, run: AttackedRun) -> None:
    arrays = split_arrays(join_arrays(silo.update.arrays), run.specification)
    assert arrays.keys() == silo.update.arrays.keys()
    assert all((arrays[name] == silo.update.arrays[name]).all() for name in arrays)


def test_a_planted_leak_writes_the_embedding_where_the_user_is_and_nothing_where_not(silo: StartedClient) -> None:
    there, gone = silo.training.shard.user_ids[0], "999999"
    made, secret = silo.update, np.random.default_rng(0)
    leaked = plant_embedding(there, 0.01)(secret)(silo.training, silo.start, made)
    width = len(made.arrays[HIDING_PLACE])
    row = silo.training.model.encoder.embedding[0].detach().numpy()[:width]
    assert leaked.arrays[HIDING_PLACE] - made.arrays[HIDING_PLACE] == pytest.approx(0.01 * row, abs=1e-7)
    assert plant_embedding(gone, 0.01)(secret)(silo.training, silo.start, made) is made


def seen_by(sent: Any, scalars: Any, others: Any) -> Transcripts:
    sent = np.asarray(sent, dtype=np.float32)
    return Transcripts(np.zeros_like(sent), sent, np.asarray(scalars, dtype=np.float64), np.asarray(others))


def test_under_masks_the_aggregator_sees_the_mean_and_rho_and_nothing_else() -> None:
    """Moving something from one client to another leaves mean and M as they are: only rho still differs."""
    others = Replays(np.array([[[1.0, 2.0]], [[3.0, 4.0]]], dtype=np.float32), np.array([[[0.1, 0.5]], [[0.2, 0.6]]]))
    moved = Replays(others.sent - np.float32(1.0), others.scalars - [0.1, 0.0])
    first = seen_by([[[5.0, 6.0]]], [[[0.3, 0.7]]], [[0, 1]])
    second = seen_by([[[7.0, 8.0]]], [[[0.5, 0.7]]], [[0, 1]])
    parts = [slice(0, 2)]
    one, two = views.secure_view(first, others, parts), views.secure_view(second, moved, parts)
    assert one["tensors"] == pytest.approx(np.array([[3.0, 4.0]])) and one["scalars"][0] == pytest.approx(
        [0.2, 0.7, 0.5, 0.6]
    )
    assert all(two[name] == pytest.approx(one[name]) for name in one)
    assert (
        views.aggregator_view(first, others, parts)["tensors"] != views.aggregator_view(second, moved, parts)["tensors"]
    ).all()


def test_another_client_sees_the_sum_of_the_others_and_its_own_rhobar() -> None:
    others = Replays(np.array([[[1.0]], [[3.0]]], dtype=np.float32), np.array([[[0.1, 0.5]], [[0.2, 0.8]]]))
    found = views.neighbour_view(seen_by([[[5.0]]], [[[0.3, 0.4]]], [[0, 1]]), others, [slice(0, 1)])
    assert found["tensors"] == pytest.approx(np.array([[8.0]]))  # 5 of the attacked client, 3 of the third
    assert found["scalars"] == pytest.approx(np.array([[0.5, 0.75]]))  # rho .5 between .4 and .8


def test_the_open_aggregator_sees_what_each_client_moved() -> None:
    sent = np.array([[[1.0, 5.0]]], dtype=np.float32)
    seen = Transcripts(
        np.array([[[0.0, 2.0]]], dtype=np.float32), sent, np.array([[[0.3, np.nan]]]), np.zeros((1, 2), int)
    )
    found = views.aggregator_view(seen, Replays(sent, seen.scalars), [slice(0, 1), slice(1, 2)])
    assert found["tensors"].tolist() == found["norms"].tolist() == [[1.0, 3.0]]
    assert found["scalars"].tolist() == [[0.3, 0.0]]
    assert views.tensors_view(seen, Replays(sent, seen.scalars), [slice(0, 2)]).keys() == {"tensors", "norms"}


def test_who_planted_a_leak_looks_at_its_size_where_it_was_planted() -> None:
    seen = seen_by([[[1.0, -2.0, 3.0, 4.0]]], [[[0.0, 0.0]]], [[0, 0]])
    assert hiding_place_features(seen, {HIDING_PLACE: slice(1, 3)})["hiding place"].tolist() == [[2.0, 3.0]]


def test_an_item_table_is_looked_at_row_by_row() -> None:
    table, bias = TensorSpec(name=ITEM_TABLE, shape=(3, 2)), TensorSpec(name="pooling.bias", shape=(2,))
    assert views.tensor_slices([table, bias]) == [slice(0, 2), slice(2, 4), slice(4, 6), slice(6, 8)]
    seen = seen_by([[[0.0, 0.0, 3.0, 4.0, 0.0, 0.0]]], [[[0.0, 0.0]]], [[0, 0]])
    assert views.change_norms(seen, views.tensor_slices([table])).tolist() == [[0.0, 5.0, 0.0]]


def test_what_was_collected_is_not_trained_again_and_comes_out_the_same(
    populations: tuple[Population, Population], run: AttackedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shadows, "BLOCK", 1)
    series = Series("open", run, {"open": (open_mode, 2), "again": (open_mode, 1)}, {"seed": 0})
    others = play_replays(series, populations[1], 1, tmp_path)
    first = collect_transcripts(series, populations[0], others, tmp_path)
    assert first["open"].sent.shape[:2] == (2, 2) and len(first["again"].sent) == 1
    assert (first["open"].sent[0] == first["again"].sent[0]).all()  # the first round is trained once for both
    kept = sorted(tmp_path.glob("open-*-00001-*.safetensors"))
    kept[0].unlink()
    again = collect_transcripts(series, populations[0], others, tmp_path)
    assert all((vars(again["open"])[name] == of).all() for name, of in vars(first["open"]).items())
    monkeypatch.setattr(shadows, "start_client", None)
    assert len(collect_transcripts(series, populations[0], others, tmp_path)["open"].sent) == 2
    fewer = replace(series, modes={"open": (open_mode, 1), "again": (open_mode, 1)})
    assert len(collect_transcripts(fewer, populations[0], others, tmp_path)["open"].sent) == 1
    other = replace(series, key={"seed": 1})
    with pytest.raises(TypeError):
        collect_transcripts(other, populations[0], others, tmp_path)


def test_a_row_is_made_once_and_found_again_after_an_interruption(tmp_path: Path) -> None:
    made: list[int] = []

    def make() -> dict[str, Any]:
        made.append(len(made))
        return {"auc": 0.5 + len(made) / 10}

    first = Rows({"seed": 0}, tmp_path).make_row(make, mode="open", question="user")
    again = Rows({"seed": 0}, tmp_path)
    assert (
        again.make_row(make, mode="open", question="user") == first == {"mode": "open", "question": "user", "auc": 0.6}
    )
    assert again.make_row(make, mode="open", question="pair")["auc"] == 0.7 and made == [0, 1]
    assert Rows({"seed": 1}, tmp_path).make_row(make, mode="open", question="user")["auc"] == 0.8


def test_a_run_with_noise_spends_what_was_asked_for() -> None:
    settings = settings_for_epsilon(8.0, 1e-5, 0.001, rounds=3)
    assert planned_epsilon(settings, ("margin", "rho"), 3) == pytest.approx(8.0, rel=1e-3)
    assert 0.5 < largest_auc(settings_for_epsilon(0.1, 1e-5, 0.001, 3), 3) < largest_auc(settings, 3) < 1.0
    assert gaussian_auc(0.0) == 0.5 and settings.noise_multiplier is not None and settings.noise_multiplier > LEAST


def test_noise_is_the_client_s_own_and_rho_is_drawn_once(silo: StartedClient, run: AttackedRun) -> None:
    settings = settings_for_epsilon(8.0, 1e-5, 0.001, run.rounds)
    other = play_run(run, silo, [], open_mode(np.random.default_rng(0)))
    noised, again, another = (
        play_run(run, silo, [], private_mode(settings)(np.random.default_rng(k))) for k in (1, 1, 2)
    )
    assert (noised.sent == again.sent).all() and (noised.sent[0] != another.sent[0]).any()
    assert noised.scalars[0, 1] == noised.scalars[1, 1] != other.scalars[0, 1]
    deviation = np.std(noised.sent[0] - other.sent[0])
    assert deviation == pytest.approx(settings.noise("tensors")[1] * 2 * 0.001, rel=0.2)


def test_two_worlds_differ_in_the_target_alone(population: Population) -> None:
    everything = complete_draw(population, draw_shadow(population, 0, 0))
    full = make_shard(population, everything).training_graph(population.train.shape).toarray()
    less = (
        make_shard(population, remove_target(population, everything, Target(USER, 2)))
        .training_graph(population.train.shape)
        .toarray()
    )
    rows = np.flatnonzero((full != less).any(axis=1))
    assert rows.tolist() == [population.coins[2]] and less[rows].sum() == 0
    less = (
        make_shard(population, remove_target(population, everything, Target(PAIR, 1)))
        .training_graph(population.train.shape)
        .toarray()
    )
    assert np.argwhere(full != less).tolist() == [[population.hosts[1], population.pairs[1]]]


def test_without_noise_all_that_leaves_tells_two_worlds_apart(population: Population, run: AttackedRun) -> None:
    found = compare_worlds(population, run, draw_shadow(population, 0, 0), [Target(USER, 0), Target(PAIR, 0)])
    assert [(one.channel, one.told, one.targets) for one in found] == [(name, 2, 2) for name in worlds.CHANNELS]


def test_what_is_not_the_same_every_time_tells_nothing_for_certain(
    population: Population, run: AttackedRun, silo: StartedClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = iter(range(10))

    def restless(*_: object) -> StartedClient:
        return replace(silo, update=Parameters(silo.update.arrays, {"margin": float(next(made)), "rho": 0.1}))

    monkeypatch.setattr(worlds, "start_client", restless)
    found = compare_worlds(population, run, draw_shadow(population, 0, 0), [Target(USER, 0)])
    assert {one.channel: one.told for one in found} == {"tensors": 0, "margin": 0, "rho": 0}


def test_noise_hides_what_the_worlds_differ_by(population: Population, run: AttackedRun) -> None:
    """The same worlds stay apart by less, the more noise there is: squared deviations fall as its square. And never
    are they further apart than the noise allows between any two shards."""
    pair = make_pair(population, run, draw_shadow(population, 0, 0), Target(USER, 0))
    strict, loose = (settings_for_epsilon(epsilon, 1e-5, 1e-3, run.rounds) for epsilon in (1.0, 50.0))
    close, far = (squared_distance(run, pair, [], settings, np.random.default_rng(0)) for settings in (strict, loose))
    assert 0.0 < close < far and gaussian_auc(far) <= largest_auc(loose, run.rounds)
    assert strict.noise_multiplier is not None and loose.noise_multiplier is not None
    ratio = (strict.noise_multiplier / loose.noise_multiplier) ** 2
    assert far / close == pytest.approx(ratio, rel=0.5)  # later rounds begin elsewhere


def test_changes_on_opposite_sides_of_the_ball_are_as_far_apart_as_is_allowed() -> None:
    settings = settings_for_epsilon(8.0, 1e-5, 1e-3, rounds=1)
    nothing, change = np.zeros((1, 3), np.float32), np.ones((1, 3), np.float32)
    received, present, absent = (Parameters({"a": array}) for array in (nothing, change, -change))
    assert settings.noise_multiplier is not None
    found = worlds._part_distance("tensors", received, (present, absent), settings)
    assert found == pytest.approx(1.0 / settings.noise_multiplier)


def rows_of(
    planted: float = 0.7, items: float = 1.0, low: float = 0.45, told: int = 3, most: float = 0.6
) -> list[dict[str, Any]]:
    """What a run that is right gives, but for what is said otherwise."""
    control = {"part": "control", "low": low, "high": low + 0.1}
    return [
        {**control, "mode": "planted embedding", "question": "user", "low": planted},
        {**control, "mode": "FedMF's item table", "question": "item", "auc": items},
        {**control, "mode": "shuffled truth", "question": "user", "auc": 0.5},
        {
            "part": "worlds",
            "mode": "open",
            "question": "user",
            "channel": "tensors",
            "told": told,
            "targets": 3,
        },
        {"part": "best", "mode": "DP", "question": "user", "most": most, "allowed": 0.7},
    ]


def test_the_check_complains_of_controls_that_fail() -> None:
    assert check(rows_of()) == []
    assert "planted embedding" in check(rows_of(planted=0.5))[0] and "item table" in check(rows_of(items=0.5))[0]
    assert "shuffled truth" in check(rows_of(low=0.51))[0]
    assert "got 2" in check(rows_of(told=2))[0] and "at most 0.700, got 0.800" in check(rows_of(most=0.8))[0]


def test_the_tables_say_what_was_found_and_leave_out_what_was_not_asked() -> None:
    figures = {"auc": 0.6, "low": 0.55, "high": 0.65, "tpr": 0.03, "trials": 300, "attacked": 150}
    exposed = {"exposed_auc": 0.7, "exposed_low": 0.6, "exposed_high": 0.8}
    user = {"part": "shadows", "mode": "open", "question": "user", **figures, **exposed}
    pair = {**user, "question": "pair", "mode": "secure", "tpr": None, "attacked": 50}
    worlds_row = {"part": "worlds", "mode": "open", "question": "user", "channel": "rho", "told": 2, "targets": 3}
    best = {"part": "best", "mode": "DP, epsilon 8", "question": "user", "targets": 3, "mean": 0.51, "most": 0.52}
    shown = render([user, pair, {**user, "part": "control"}, worlds_row, {**best, "allowed": 0.9}])
    assert "*user*: is this user in the shard? (2 targets in each shard)" in shown
    assert "| open | 150 | 0.600 (0.550 to 0.650) [3.0 %] |  |" in shown
    assert "| secure | 50 |  | 0.600 (0.550 to 0.650) |" in shown and "| open | 150 | 0.700 (0.600 to 0.800) |" in shown
    assert "| user | rho | 2 of 3 |" in shown and "| DP, epsilon 8 | user | 0.5100 | 0.5200 | 0.9000 |" in shown
