"""Models with an item table: what is shared, what stays, what training moves, and how a basket is folded in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import sparse

from client_service.data.interactions import Shard
from client_service.model_store.model_files import freeze
from client_service.models.encoders.attention import GraphAttention
from client_service.models.encoders.metapath import MetaPaths, SemanticAttention, perturb
from client_service.models.item_table import Factors, FoldedVectors
from client_service.training.item_trainer import ItemTrainer
from client_service.training.losses import bce, bpr, bpr_of_rows
from client_service.training.training_state import RoundContext
from shared.errors import SettingsError
from shared.method.parameters import Parameters
from shared.method.settings import MethodSettings
from shared.method.spectrum import low_spectrum
from shared.method.tensors import ITEM_TABLE
from shared.strategies import STRATEGIES
from shared.strategies.local_client import Objective

CATALOGUE = 50
KINDS = {"fedmf": "mf", "f2mf": "mf", "pfedrec": "pfedrec", "fedrap": "fedrap"} | {
    "fedpergnn": "attention",
    "fedhgnn": "metapath",
}
METHOD = MethodSettings(width=8, layers=1, cutoff=8, catalogue=CATALOGUE, batch_size=32, negatives=16)
FAST = METHOD.model_copy(update={"learning_rate": 0.02})
Builder = Callable[[str], ItemTrainer]


@pytest.fixture
def client(planted: Shard) -> Builder:
    """A silo that has the items at the catalogue's places 5 to 44, in an order of its own."""
    places = np.random.default_rng(0).permutation(40) + 5
    shard = replace(planted, places=places)
    spectrum = low_spectrum(shard.train, 8)

    def build(kind: str) -> ItemTrainer:
        found = ItemTrainer(shard, spectrum, FAST, torch.device("cpu"), kind=kind)
        found.context = RoundContext(round=1, rounds=9, seed=0)
        return found

    return build


def factors(client: ItemTrainer) -> Factors:
    assert isinstance(client.model.encoder, Factors)
    return client.model.encoder


@pytest.mark.parametrize("name", sorted(KINDS))
def test_a_few_rounds_learn_the_communities_and_leave_other_silos_rows_alone(client: Builder, name: str) -> None:
    strategy, mine = STRATEGIES[name](FAST), client(KINDS[name])
    received = Parameters(mine.arrays())
    before = received.arrays[ITEM_TABLE].copy()
    for number in range(1, 16):
        mine.context = RoundContext(number, 15, 0)
        received = strategy.fit(mine, received)
    if name != "fedpergnn":  # which moves some of the others' rows on purpose
        np.testing.assert_array_equal(received.arrays[ITEM_TABLE][:5], before[:5])
        np.testing.assert_array_equal(received.arrays[ITEM_TABLE][45:], before[45:])
    ranked = mine.model.freeze().top(np.arange(40), mine.shard.train, 4)  # four items of the own ten are left
    assert (ranked // 10 == np.arange(40)[:, None] // 10).mean() > 0.6  # by chance: 4 of 34


@pytest.mark.parametrize("kind", sorted(set(KINDS.values())))
def test_a_frozen_copy_does_not_move_and_ranks_the_same(client: Builder, kind: str) -> None:
    mine = client(kind)
    served = freeze("run-1.1", mine)
    before = served.ranker.items.embedding.copy()
    mine.train(Objective(loss="bpr"))
    np.testing.assert_array_equal(served.ranker.items.embedding, before)
    np.testing.assert_array_equal(served.model.freeze().items.embedding, before)
    assert not np.array_equal(mine.model.freeze().items.embedding, before)


def test_a_model_with_an_item_table_needs_a_catalogue(planted: Shard) -> None:
    with pytest.raises(SettingsError, match="catalogue"):
        ItemTrainer(planted, low_spectrum(planted.train, 8), METHOD, torch.device("cpu"), kind="mf")


def test_a_basket_is_folded_in_near_its_own_community(client: Builder) -> None:
    mine = client("mf")
    for _ in range(20):
        mine.train(Objective(loss="bce"))
    ranker = mine.model.freeze()
    side = mine.model.fold_in(np.array([10, 11, 12, 13]))
    found = (side.embedding @ ranker.items.embedding.T)[0]
    assert found[14:20].mean() > np.delete(found, np.arange(10, 20)).max()


def test_folding_in_by_hand() -> None:
    # One item, v = (2, 0): (1 + .1) 4 x + .01 * 4 x = 2, so x = 2 / 4.44.
    found = FoldedVectors(np.array([[2.0, 0.0]], dtype=np.float32)).solve(np.array([0]))
    np.testing.assert_allclose(found, [2 / 4.44, 0.0], rtol=1e-6)


def test_pfedrec_ranks_with_its_tuned_rows_after_the_mean_has_come(client: Builder) -> None:
    mine = client("pfedrec")
    mine.train(Objective(loss="bce"))
    tuned = mine.model.freeze().items.embedding
    mine.load(Parameters({ITEM_TABLE: np.zeros((CATALOGUE, 8), dtype=np.float32)}))
    np.testing.assert_array_equal(mine.model.freeze().items.embedding, tuned)


def test_attention_is_the_softmax_over_neighbours(client: Builder) -> None:
    model = client("attention").model
    assert isinstance(model.encoder, GraphAttention)
    with torch.no_grad():
        model.encoder.attention.normal_(generator=torch.Generator().manual_seed(0))
    users, _ = model.encoder.vectors()
    e_items = model.encoder.item_rows(torch.arange(40))
    known = torch.from_numpy(client("attention").shard.train.toarray()[7] > 0)
    shares = torch.softmax((e_items @ model.encoder.attention[1])[known], dim=0)
    torch.testing.assert_close(users[7], model.encoder.embedding[7] + shares @ e_items[known])


def test_meta_paths_are_weighed_by_the_mean_over_all_nodes(client: Builder) -> None:
    model = client("metapath").model
    assert isinstance(model.encoder, MetaPaths)
    with torch.no_grad():
        for parameter in model.encoder.attention.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(0))
    graph = model.encoder.propagation.matrix.to_dense()
    zero = torch.cat([model.encoder.embedding, model.encoder.item_rows(torch.arange(40))])
    paths = torch.stack([zero, graph @ zero, graph @ graph @ zero])[:, 40:]  # of the items
    semantic = model.encoder.attention["item"]
    assert isinstance(semantic, SemanticAttention)
    asked = torch.tanh(paths @ semantic.weight.T + semantic.bias) @ semantic.query[0]
    expected = torch.einsum("p,pnd->nd", torch.softmax(asked.mean(1), dim=0), paths)
    torch.testing.assert_close(model.encoder.rows(torch.arange(3), torch.arange(5, 9))[1], expected[5:9])


def test_randomised_response_keeps_degrees_and_at_a_large_budget_the_graph(planted: Shard) -> None:
    wide = sparse.csr_array(np.kron(planted.train.toarray(), np.ones((20, 5))))  # 800 x 200, 30 items each
    noisy = perturb(wide, 4.0, np.random.default_rng(1))
    assert noisy.sum(1).mean() == pytest.approx(30, rel=0.03)
    # p = .982: of 29.5 honest ones and 3.1 false ones 30 / 32.5 are kept: 27.2 true edges.
    assert noisy.multiply(wide).sum() / 800 == pytest.approx(27.6, rel=0.03)
    assert abs(perturb(wide, 40.0, np.random.default_rng(1)) - wide).sum() == 0


def test_noise_is_the_same_again_and_another_for_another_round_purpose_or_shard(client: Builder) -> None:
    mine = client("mf")
    first, again, other = (mine.generator(p).normal() for p in ("a", "a", "b"))
    mine.context = RoundContext(round=2, rounds=9, seed=0)
    later = mine.generator("a").normal()
    mine.shard = replace(mine.shard, titles=("another",) * 40)
    assert first == again and len({first, other, later, mine.generator("a").normal()}) == 4


def test_losses_by_hand() -> None:
    positive, negatives = torch.tensor([0.0, 2.0]), torch.tensor([[0.0, 5.0], [1.0, 1.0]])
    excluded = torch.tensor([[False, True], [False, False]])
    soft = np.logaddexp(0, [0.0, -2.0, 0.0, 1.0, 1.0, -1.0])  # of -f_0, -f_1, the sampled f, and f_j - f_1
    assert bce(positive, negatives, excluded).item() == pytest.approx(soft[:2].mean() + soft[2:5].mean())
    assert bpr_of_rows(positive, negatives, excluded).tolist() == pytest.approx([soft[0], soft[5]])
    weights = torch.tensor([2.0, 0.0])
    assert bpr(positive, negatives, excluded, weights).item() == pytest.approx(2 * soft[0] / 3)
    weighted = 2 * soft[0] / 2 + 2 * soft[2] / 3
    assert bce(positive, negatives, excluded, weights).item() == pytest.approx(weighted)


def test_weights_train_one_half_alone_and_both_halves_have_a_loss(shard_of: Callable[..., Shard]) -> None:
    shard = shard_of([[1, 0, 0, 0], [1, 1, 1, 0], [0, 1, 0, 0], [0, 1, 1, 1]])
    placed = replace(shard, places=np.arange(4))
    method = FAST.model_copy(update={"catalogue": 4, "cutoff": 2})
    mine = ItemTrainer(placed, low_spectrum(shard.train, 2), method, torch.device("cpu"), kind="mf")
    before = factors(mine).embedding.detach().clone()
    mine.train(Objective(loss="bpr", group_weights=(0.0, 1.0)))
    moved = (factors(mine).embedding != before).any(1)
    assert moved.tolist() == [False, True, False, True]
    assert all(0.0 < loss < 5.0 for loss in mine.measure("losses_by_activity"))
