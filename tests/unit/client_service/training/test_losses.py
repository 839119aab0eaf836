"""Training: the loss falls, the tables settle, the warm-up knows no margin, and a round repeated is the same round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch

import client_service.training.margins
from client_service.data.interactions import Shard
from client_service.models.popularity_angle import PopularityTables
from client_service.training.item_trainer import ItemTrainer, pair_loss
from client_service.training.margins import TABLE_STEPS, fit_tables, popularity_loss
from client_service.training.sampling import PairSampler
from client_service.training.training_state import RoundContext
from shared.method.parameters import Parameters, digest_arrays
from shared.method.settings import MethodSettings
from shared.method.spectrum import Spectrum, low_spectrum
from shared.method.tensors import initial_parameters, mlp_specification
from shared.strategies.local_client import Objective

CPU = torch.device("cpu")
BASE: dict[str, Any] = {"width": 4, "layers": 1, "cutoff": 8, "batch_size": 64, "negatives": 8}
Builder = Callable[..., ItemTrainer]


@pytest.fixture
def client(planted: Shard) -> Builder:
    """A client on the planted communities, with some settings replaced, its MLPs where the aggregator starts them."""
    spectrum: Spectrum = low_spectrum(planted.train, 8)

    def build(**changes: Any) -> ItemTrainer:
        method = MethodSettings(**(BASE | changes))
        found = ItemTrainer(planted, spectrum, method, CPU)
        initial = initial_parameters(mlp_specification(method), 0, exact=method.start == "exact")
        found.load(Parameters(initial))
        found.context = RoundContext(round=3, rounds=9, seed=0)
        return found

    return build


def values(client: ItemTrainer) -> dict[str, np.ndarray]:
    """Every trained number of the model, private ones too."""
    return {name: p.detach().numpy().copy() for name, p in client.model.named_parameters()}


def moved(client: ItemTrainer, before: Mapping[str, np.ndarray]) -> set[str]:
    return {name for name, value in values(client).items() if not np.array_equal(value, before[name])}


def all_digests(client: ItemTrainer) -> tuple[str, str]:
    tables = {name: p.detach().numpy() for name, p in client.tables.named_parameters()}
    return digest_arrays(values(client)), digest_arrays(tables)


@pytest.mark.parametrize(
    "changes",
    [
        {"start": "random", "learning_rate": 0.02, "mlp_learning_rate": 0.02},
        {"start": "random", "learning_rate": 0.01, "mlp_learning_rate": 0.01, "optimiser": "rmsprop"},
        {"start": "random", "learning_rate": 0.02, "mlp_learning_rate": 0.02, "loss": "bpr"},
        {"start": "exact", "learning_rate": 0.02, "leave_one_out": False},
    ],
    ids=["adam", "rmsprop", "bpr", "from the filter"],
)
def test_the_loss_falls_over_a_few_epochs(client: Builder, changes: dict[str, Any]) -> None:
    trained = client(**changes)
    losses = []
    for _ in range(15):
        trained.train()
        losses.append(trained.figures.loss)
    assert losses[-1] < 0.85 * losses[0]


def test_training_at_random_learns_the_communities(client: Builder, planted: Shard) -> None:
    trained = client(start="random", learning_rate=0.02, mlp_learning_rate=0.02, local_epochs=20)
    trained.train()
    with torch.no_grad():
        scores = trained.model.head.score_all(*trained.model.pooled()).numpy()
    unseen = planted.train.toarray() == 0
    own = np.arange(40)[:, None] // 10 == np.arange(40) // 10
    # Four unseen items of a user's own community against thirty others, none of which it ever saw in training.
    assert scores[own & unseen].mean() > scores[~own].mean() + 1.0


def test_the_tables_settle_and_their_loss_has_fallen(planted: Shard, shard_of: Callable[..., Shard]) -> None:
    rows = planted.train.toarray().copy()
    rows[:, :4] = 1.0  # four items that everybody likes: popularity explains something
    shard, method = shard_of(rows), MethodSettings(**BASE)
    tables = PopularityTables(shard.train, 4)
    batches = PairSampler(shard.train, batch_size=64, negatives=8, device=CPU)

    def loss() -> float:
        sample = batches.epoch(torch.Generator().manual_seed(1))
        return float(np.mean([popularity_loss(tables, batch, method.temperature).item() for batch in sample]))

    before = loss()
    steps = fit_tables(tables, batches, method, torch.Generator().manual_seed(0))
    assert loss() < 0.9 * before
    assert 100 <= steps < TABLE_STEPS  # two windows at least, and long before the limit
    with torch.no_grad():
        xi = tables.at(tables.angles(), torch.zeros(40, dtype=torch.int64), torch.arange(40))
    assert xi[:4].max().item() < xi[4:].min().item()  # popular items lie nearer to a user than rare ones


def test_tables_stop_at_the_limit_of_steps(planted: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_service.training.margins, "TABLE_STEPS", 7)
    batches = PairSampler(planted.train, batch_size=64, negatives=8, device=CPU)  # 240 pairs: 4 batches an epoch
    generator = torch.Generator().manual_seed(0)
    assert fit_tables(PopularityTables(planted.train, 4), batches, MethodSettings(**BASE), generator) == 8


def test_the_warm_up_fits_the_tables_and_trains_the_model_without_a_margin(client: Builder) -> None:
    with_margin, without = client(margin_strength=1.0), client(margin_strength=0.0)
    for one in (with_margin, without):
        one.context = RoundContext(round=2, rounds=9, seed=0)
        one.train(Objective(bias_aware=True))
        assert one.figures.table_steps > 0 and one.figures.saturated == 0.0
    assert all_digests(with_margin) == all_digests(without)


def test_after_the_warm_up_the_margin_counts_and_the_tables_are_frozen(client: Builder) -> None:
    with_margin, without = client(margin_strength=1.0), client(margin_strength=0.0)
    for one in (with_margin, without):
        one.context = RoundContext(round=2, rounds=9, seed=0)
        one.train(Objective(bias_aware=True))
    tables = all_digests(with_margin)[1]
    for one in (with_margin, without):
        one.context = RoundContext(round=3, rounds=9, seed=0)
        one.train(Objective(bias_aware=True))
        assert one.figures.table_steps == 0
    assert all_digests(with_margin)[1] == tables == all_digests(without)[1]
    assert all_digests(with_margin)[0] != all_digests(without)[0]


def test_who_comes_after_the_warm_up_fits_its_tables_all_the_same(client: Builder) -> None:
    late = client(margin_strength=1.0)
    late.train(Objective(bias_aware=True))
    assert late.figures.table_steps > 0


def test_the_share_of_positives_without_a_gradient_is_reported(client: Builder) -> None:
    # Opposite vectors: xi = pi, and gamma xi = pi reaches past pi - R for every score. With gamma 0 none does.
    for strength, share in ((1.0, 1.0), (0.0, 0.0)):
        one = client(margin_strength=strength, refinement=0.0)
        with torch.no_grad():
            one.tables.user_table.fill_(1.0)
            one.tables.item_table.fill_(-1.0)
        one.train(Objective(bias_aware=True))
        assert one.figures.saturated == share


def test_a_strategy_that_is_not_bias_aware_uses_no_margin_in_any_round(client: Builder) -> None:
    with_margin, without = client(margin_strength=1.0), client(margin_strength=0.0)
    for one in (with_margin, without):
        one.context = RoundContext(round=1, rounds=9, seed=0)
        one.train()
        assert one.figures.table_steps == 0
    assert all_digests(with_margin) == all_digests(without)


def test_the_aggregators_margin_changes_training(client: Builder) -> None:
    without, small, large = client(), client(), client()
    small.load(Parameters({}, {"margin": 0.1}))
    large.load(Parameters({}, {"margin": 1.4}))
    for one in (without, small, large):
        one.train(Objective(bias_aware=True))
    assert len({all_digests(one)[0] for one in (without, small, large)}) == 3


def test_a_warm_up_of_the_tables_alone_leaves_the_model_as_it_is(client: Builder) -> None:
    warming = client(warmup_trains="tables")
    warming.context = RoundContext(round=1, rounds=9, seed=0)
    before, tables = values(warming), all_digests(warming)[1]
    warming.train(Objective(bias_aware=True))
    assert moved(warming, before) == set() and all_digests(warming)[1] != tables
    warming.context = RoundContext(round=3, rounds=9, seed=0)
    warming.train(Objective(bias_aware=True))
    assert moved(warming, before) != set()


def test_only_the_named_parameters_are_trained(client: Builder) -> None:
    trained = client(start="random", decay=5.0)
    with torch.no_grad():
        trained.model.encoder.embedding.add_(0.5)
    for only in ("pooling.", "predictive.output.", "kernels"):
        before = values(trained)
        trained.train(Objective(only=only))
        assert moved(trained, before) == {name for name in before if name.startswith(only)}


def test_without_a_name_everything_but_the_unused_is_trained(client: Builder) -> None:
    exact, random = client(start="exact"), client(start="random")
    for one, unused in ((exact, set()), (random, {"log_alpha"})):
        before = values(one)
        one.train()
        one.train()  # hidden layers start to move once the output layers are no longer zero
        assert moved(one, before) == set(before) - unused


def test_embeddings_and_mlps_learn_at_their_own_rates(client: Builder) -> None:
    trained = client(start="random", learning_rate=1e-3, mlp_learning_rate=0.1, batch_size=1000)
    before = values(trained)
    trained.train()  # one step: Adam's first step has the length of the rate
    step = {name: np.abs(value - before[name]).max() for name, value in values(trained).items()}
    assert step["embedding"] == pytest.approx(1e-3, rel=0.01) and step["kernels"] == pytest.approx(1e-3, rel=0.01)
    assert step["pooling.hidden.weight"] == pytest.approx(0.1, rel=0.01)


def test_the_paper_preset_uses_rmsprop_and_the_default_adam(client: Builder) -> None:
    paper, ours = client(optimiser="rmsprop"), client()
    assert isinstance(paper.build_optimiser(""), torch.optim.RMSprop)
    assert isinstance(ours.build_optimiser(""), torch.optim.Adam)


def test_a_penalty_on_the_distance_to_what_was_received_keeps_the_mlps_near_it(client: Builder) -> None:
    def proximal(current: Mapping[str, Any], received: Mapping[str, Any]) -> Any:
        assert set(received) == set(start) < set(current)
        return 100.0 * sum(((current[name] - received[name]) ** 2).sum() for name in received)

    plain, held = (client(start="random", mlp_learning_rate=0.01, local_epochs=5) for _ in range(2))
    start = plain.arrays()
    plain.train()
    held.train(Objective(penalty=proximal))

    def distance(one: ItemTrainer) -> float:
        return float(sum(((value - start[name]) ** 2).sum() for name, value in one.arrays().items()))

    assert distance(held) < 0.5 * distance(plain)


def test_a_constant_penalty_is_added_to_the_loss_and_moves_nothing(client: Builder) -> None:
    plain, penalised = client(), client()
    plain.train()
    penalised.train(Objective(penalty=lambda current, _: 3.0 + 0.0 * current["pooling.output.bias"].sum()))
    assert penalised.figures.loss == pytest.approx(plain.figures.loss + 3.0, abs=1e-5)
    assert all_digests(penalised) == all_digests(plain)


def test_decay_pulls_the_embeddings_to_their_start(client: Builder) -> None:
    free, held = client(learning_rate=0.01, local_epochs=5), client(learning_rate=0.01, local_epochs=5, decay=20.0)
    for one in (free, held):
        one.train()
    encoders = (free.model.encoder, held.model.encoder)
    far, near = ((one.embedding - one.origin).detach().abs().mean().item() for one in encoders)
    assert 0.0 < near < 0.8 * far


def test_decay_of_one_over_the_rate_ends_every_step_at_the_start(client: Builder) -> None:
    trained = client(learning_rate=0.01, decay=100.0)
    trained.train()
    encoder = trained.model.encoder
    torch.testing.assert_close(encoder.embedding.detach(), encoder.origin, atol=1e-6, rtol=0)


def test_the_same_round_of_the_same_run_gives_the_same_bits(client: Builder) -> None:
    first, again = client(), client()
    for one in (first, again):
        one.train(Objective(bias_aware=True))
    assert all_digests(first) == all_digests(again)


@pytest.mark.parametrize("context", [RoundContext(round=4, rounds=9, seed=0), RoundContext(round=3, rounds=9, seed=1)])
def test_another_round_or_seed_gives_others(client: Builder, context: RoundContext) -> None:
    first, other = client(), client()
    other.context = context
    for one in (first, other):
        one.train(Objective(bias_aware=True))
    assert all_digests(first) != all_digests(other)


def test_leaving_the_own_edge_out_makes_a_training_pair_harder(client: Builder) -> None:
    losses = {}
    for leave_one_out in (True, False):
        one = client(leave_one_out=leave_one_out, batch_size=1000, negatives=64)
        (batch,) = one.batches.epoch(torch.Generator().manual_seed(0))
        losses[leave_one_out] = pair_loss(one.model, batch, one.method, None)[0].item()
    assert losses[True] > losses[False]
