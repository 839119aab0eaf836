"""FedUTR and FedUTR-SAR: the equations by hand, what is mixed and shrunk, the factored score, and where items begin."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from client_service.compilation.exact_arrays import exact_arrays
from client_service.data.interactions import Shard
from client_service.model_store.model_files import freeze
from client_service.models.encoders.fedutr import Adaptation, FedUTR, FusionLayer, FusionValues
from client_service.models.encoders.fedutr_sar import SparsityAware
from client_service.models.item_table import Factors
from client_service.training.item_trainer import ItemTrainer, shrink
from client_service.training.start_choice import text_rows
from client_service.training.training_state import RoundContext
from shared.errors import SettingsError
from shared.method.parameters import Parameters
from shared.method.settings import MethodSettings, method_settings
from shared.method.spectrum import low_spectrum
from shared.method.tensors import ITEM_TABLE, fusion_specification, table_specification
from shared.strategies import build_strategy
from shared.strategies.fedutr import ADAPTATION, REGULARISED
from shared.strategies.local_client import Objective, Shrinkage

CATALOGUE = 50
SIZES: dict[str, Any] = {"width": 8, "layers": 1, "cutoff": 8, "catalogue": CATALOGUE, "batch_size": 32}
WORDS = ("war", "love", "space", "crime")
Builder = Callable[..., ItemTrainer]


@pytest.fixture
def titled(planted: Shard) -> Shard:
    """40 users and 40 items in four communities, whose items have a word in common; items 5 to 44 of a catalogue."""
    titles = tuple(f"{WORDS[item // 10]} story" for item in range(40))
    return replace(planted, places=np.random.default_rng(0).permutation(40) + 5, titles=titles)


@pytest.fixture
def client(titled: Shard) -> Builder:
    def build(kind: str, shard: Shard = titled, **changes: Any) -> ItemTrainer:
        method = method_settings(**SIZES, learning_rate=0.02, **changes)
        return ItemTrainer(shard, low_spectrum(shard.train, 8), method, torch.device("cpu"), kind=kind)

    return build


def encoder_of(mine: ItemTrainer) -> FedUTR:
    assert isinstance(mine.model.encoder, FedUTR)
    return mine.model.encoder


def run_rounds(mine: ItemTrainer, name: str, rounds: int = 15) -> Parameters:
    strategy, received = build_strategy(name, mine.method), Parameters(mine.arrays())
    for number in range(1, rounds + 1):
        mine.context = RoundContext(number, rounds, 0)
        received = strategy.fit_round(mine, received)
    return received


def values(weight: list[list[float]]) -> FusionValues:
    width = len(weight)
    return FusionValues(torch.tensor(weight), torch.zeros(width), torch.ones(width), torch.zeros(width))


def test_the_score_and_the_loss_of_a_pair_by_hand() -> None:
    # E = (1, -1): G = (1, 0), G + E = (2, -1), mean .5, variance 2.25. The negative (.5, 2): G + E = (1, 4).
    fusion = values([[1.0, 0.0], [0.0, 1.0]])
    rows = torch.tensor([[1.0, -1.0], [0.5, 2.0]])
    fused = fusion.normalise(fusion.interactions(rows) + rows)
    np.testing.assert_allclose(fused, [[0.9999978, -0.9999978], [-0.9999978, 0.9999978]], atol=1e-6)
    scores = fused @ torch.tensor([0.5, 0.25])
    np.testing.assert_allclose(scores, [0.2499994, -0.2499994], atol=1e-6)
    losses = torch.nn.functional.softplus(torch.stack([-scores[0], scores[1]]))
    np.testing.assert_allclose(losses, [0.5759397, 0.5759397], atol=1e-6)
    assert losses.sum().item() + 0.1 * fusion.weight.abs().sum().item() == pytest.approx(1.3518793, abs=1e-6)


def test_the_adaptation_by_hand() -> None:
    adaptation = Adaptation(2)
    with torch.no_grad():
        adaptation.common.copy_(torch.tensor([0.5, 0.0]))
        adaptation.own.copy_(torch.tensor([0.0, 1.0]))
    common, own = values([[1.0, 0.0], [0.0, 1.0]]), values([[3.0, 0.0], [0.0, -1.0]])
    share = adaptation.share(common, own)
    np.testing.assert_allclose(share.detach(), [0.6224593, 0.2689414], atol=1e-6)
    mixed = common.mixed(own, share).weight.detach()
    np.testing.assert_allclose(mixed, np.diag([1.7550813, -0.4621172]), atol=1e-6)


def test_shares_of_sparsity_by_hand(client: Builder) -> None:
    encoder = client("fedutr_sar").model.encoder
    assert isinstance(encoder, SparsityAware)
    with torch.no_grad():
        encoder.sparsity.copy_(torch.tensor([0.5, -1.0]))
    shares = encoder.shares(torch.log(torch.tensor([1.0, 7.0, 100.0])))
    np.testing.assert_allclose(shares.detach(), [0.2689414, 0.4932392, 0.7862697], atol=1e-6)


def test_proximal_steps_by_hand(client: Builder) -> None:
    mine = client("fedutr")
    encoder = encoder_of(mine)
    with torch.no_grad():
        encoder.fusion.values().weight.fill_(0.03)
        encoder.fusion.values().bias.fill_(-0.005)
    shrink(mine.model, Shrinkage(REGULARISED, 0.1), rate=0.1)
    np.testing.assert_allclose(encoder.fusion.values().weight.detach(), 0.02, atol=1e-6)
    assert not encoder.fusion.values().bias.any()


def test_a_large_penalty_leaves_the_normalised_text_and_its_gain(client: Builder) -> None:
    mine = client("fedutr", **{"strategy.sparsity": 100.0})
    run_rounds(mine, "fedutr", 2)
    encoder = encoder_of(mine)
    fusion = encoder.fusion.values()
    assert not fusion.weight.any() and not fusion.bias.any()
    assert (fusion.gain.detach() - 1).abs().max() < 0.5
    every = torch.arange(40)
    expected = torch.nn.functional.layer_norm(encoder.item(every), (8,), fusion.gain, fusion.shift)
    torch.testing.assert_close(encoder.item_rows(every), expected)


@pytest.mark.parametrize("normalise", [True, False])
def test_the_factored_score_is_the_naive_one_in_training_and_at_rest(client: Builder, normalise: bool) -> None:
    mine = client("fedutr_sar", **{"strategy.normalise": normalise})
    run_rounds(mine, "fedutr_sar", 3)
    encoder = mine.model.encoder
    assert isinstance(encoder, SparsityAware)
    with torch.no_grad():
        encoder.sparsity.copy_(torch.tensor([0.9, -2.0]))
        encoder.logs.copy_(torch.log(torch.linspace(1, 200, 40)))
        encoder.usual_logs.copy_(torch.log(torch.tensor([30.0, 1.0, 200.0])))
        values, every = encoder.fusion.values(), torch.arange(40)
        rows, shares = encoder.item(every), encoder.shares(encoder.logs)[:, None, None]
        mixed = shares * values.interactions(rows) + (1 - shares) * rows  # (M, N, d)
        fused = torch.nn.functional.layer_norm(mixed, (8,), values.gain, values.shift, 1e-5) if normalise else mixed
        naive = torch.einsum("md,mnd->mn", encoder.embedding, fused)
        bias = encoder.embedding @ values.shift if normalise else torch.zeros(40)
        positive, others = mine.model.scores(every, every, every, leave_one_out=False)
        np.testing.assert_allclose(positive, naive.diagonal(), atol=1e-5)
        np.testing.assert_allclose(others, naive, atol=1e-5)
        ranker = mine.model.freeze()
        at_rest = ranker.users.embedding @ ranker.items.embedding.T
        np.testing.assert_allclose(at_rest, naive - bias[:, None], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", ["fedutr", "fedutr_sar"])
def test_a_few_rounds_learn_the_communities(client: Builder, name: str) -> None:
    mine = client(name)
    run_rounds(mine, name)
    ranked = mine.model.freeze().top(np.arange(40), mine.shard.train, 4)
    assert (ranked // 10 == np.arange(40)[:, None] // 10).mean() > 0.6


@pytest.mark.parametrize("name", ["fedutr", "fedutr_sar"])
def test_a_basket_is_compiled_as_the_model_folds_it_in(client: Builder, name: str) -> None:
    mine = client(name)
    run_rounds(mine, name, 3)
    served = freeze("run-1.1", mine)
    _, arrays = exact_arrays(served, ())
    basket = np.array([10, 11, 12])
    items, own = arrays["item-embedding"].astype(np.float64), arrays["item-embedding"][basket].astype(np.float64)
    vector = np.linalg.solve(own.T @ own + arrays["fold-unseen"], own.sum(0))
    expected = (served.model.fold_in(basket).embedding @ served.ranker.items.embedding.T)[0]
    found = items @ vector
    np.testing.assert_allclose(found - found.mean(), expected - expected.mean(), atol=1e-4)
    assert np.argsort(-expected)[:6].max() < 20


def test_the_first_round_mixes_nothing_and_later_ones_what_the_silo_has_trained(client: Builder) -> None:
    mine = client("fedutr")
    encoder, started = encoder_of(mine), Parameters(mine.arrays())
    objective = Objective(loss="bce", only=ADAPTATION)
    mine.train(objective)
    assert not encoder.adaptation.bias and not encoder.local_known
    mine.train(Objective(loss="bce"))
    own = copy.deepcopy(encoder.fusion)
    torch.testing.assert_close(encoder.local.values().weight, own.values().weight.detach())
    mine.load(started)
    common = encoder.fusion.values().weight.detach().clone()
    mine.train(objective)
    assert encoder.adaptation.bias != 0
    share = encoder.adaptation.share(
        FusionValues(common, *(value for value in encoder.local.values()[1:])), own.values()
    ).detach()
    assert isinstance(encoder.fusion, FusionLayer)
    expected = share[:, None] * common + (1 - share[:, None]) * own.values().weight.detach()
    torch.testing.assert_close(encoder.fusion.values().weight.detach(), expected, atol=1e-5, rtol=0)


def test_training_goes_on_to_the_bit_from_a_state(client: Builder) -> None:
    mine, other = client("fedutr_sar"), client("fedutr_sar")
    received = run_rounds(mine, "fedutr_sar", 2)
    state = copy.deepcopy(mine.state())
    strategy = build_strategy("fedutr_sar", mine.method)
    other.restore(state)
    sent = []
    for one in (mine, other):
        one.context = RoundContext(3, 3, 0)
        sent.append(strategy.fit_round(one, received).arrays)
    for name, value in sent[0].items():
        np.testing.assert_array_equal(value, sent[1][name])


SWITCHED = {
    "fusion": {ITEM_TABLE},
    "adaptation": {ITEM_TABLE, "fusion.bias", "fusion.gain", "fusion.shift", "fusion.weight"},
}


@pytest.mark.parametrize("switch", SWITCHED)
def test_what_is_switched_off_is_neither_trained_nor_sent(client: Builder, switch: str) -> None:
    mine = client("fedutr", **{f"strategy.{switch}": False})
    assert set(run_rounds(mine, "fedutr", 2).arrays) == SWITCHED[switch]
    encoder = encoder_of(mine)
    assert not encoder.adaptation.bias
    if switch == "fusion":
        every = torch.arange(40)
        torch.testing.assert_close(encoder.item_rows(every), encoder.item(every))


def test_without_normalisation_items_keep_their_length(client: Builder) -> None:
    encoder = encoder_of(client("fedutr", **{"strategy.normalise": False}))
    every = torch.arange(40)
    rows = encoder.item(every)
    torch.testing.assert_close(encoder.item_rows(every), encoder.fusion.values().interactions(rows) + rows)


def test_items_begin_at_text_that_is_the_same_in_every_silo(titled: Shard) -> None:
    method = method_settings(**SIZES)
    rows = text_rows(titled, method, "fedutr")
    assert rows is not None
    np.testing.assert_allclose(np.sqrt((rows**2).mean(1)), 0.1, rtol=1e-5)
    np.testing.assert_allclose(rows[10:20], np.broadcast_to(rows[10], (10, 8)), atol=1e-6)
    assert rows[10] @ rows[0] < 0.9 * rows[10] @ rows[10]
    assert titled.places is not None and titled.titles is not None
    others = replace(titled, places=titled.places[::-1].copy(), titles=titled.titles[::-1])
    found = text_rows(others, method, "fedutr")
    assert found is not None
    np.testing.assert_allclose(found, rows[::-1], atol=1e-6)


@pytest.mark.parametrize("kind", ["mf", "fedrap", "pfedrec"])
def test_one_setting_gives_other_models_the_text(client: Builder, titled: Shard, kind: str) -> None:
    mine, plain = client(kind, item_start="text"), client(kind)
    assert isinstance(mine.model.encoder, Factors) and isinstance(plain.model.encoder, Factors)
    assert plain.model.encoder.item.text is None and not mine.arrays()[ITEM_TABLE].any()
    rows = text_rows(titled, mine.method, kind)
    assert rows is not None
    torch.testing.assert_close(mine.model.encoder.item(torch.arange(40)).detach(), torch.from_numpy(rows))


def test_text_that_is_asked_for_must_be_there(client: Builder, titled: Shard) -> None:
    bare = replace(titled, titles=None)
    with pytest.raises(SettingsError, match="item_start: expected items with titles"):
        client("mf", bare, item_start="text")
    with pytest.raises(SettingsError, match="item_start: expected item features of 'svd/64/1'"):
        client("mf", item_start="svd/64/1")
    assert encoder_of(client("fedutr", bare)).item.text is not None  # rows that places in the catalogue draw
    assert not isinstance(client("fedutr", item_start="random").model.encoder.item.text, torch.Tensor)  # type: ignore


def test_noise_on_the_table_is_that_of_the_setting_and_of_nothing_else(client: Builder) -> None:
    quiet, noisy = client("fedutr"), client("fedutr", **{"strategy.noise_scale": 0.3})
    sent = [run_rounds(one, "fedutr", 1).arrays for one in (quiet, noisy)]
    noise = sent[1][ITEM_TABLE] - sent[0][ITEM_TABLE]
    assert np.abs(noise).mean() == pytest.approx(0.3, rel=0.2)
    np.testing.assert_array_equal(sent[0]["fusion.weight"], sent[1]["fusion.weight"])


def test_an_item_that_nobody_has_is_pushed_down_unless_negatives_are_items_that_somebody_has(
    client: Builder, titled: Shard
) -> None:
    events = titled.events.filter(titled.events["item"] != 7)
    moved = []
    for taken in (True, False):
        mine = client("fedutr", replace(titled, events=events), **{"strategy.taken_negatives": taken})
        run_rounds(mine, "fedutr", 2)
        assert titled.places is not None
        moved.append(mine.arrays()[ITEM_TABLE][titled.places[7]].any())
    assert moved == [False, True]


TABLE_1 = {"KU": (5370, 687_488, 698_376), "Food": (1579, 202_240, 213_128)}
TABLE_1 |= {"Dance": (2307, 295_424, 306_312), "Movie": (3509, 449_280, 460_168)}


@pytest.mark.parametrize("data", TABLE_1)
def test_sizes_of_the_papers_table_follow_from_the_declaration(data: str) -> None:
    # Paper: 1,602 numbers more than these for a LAM of which it gives no equation; here: 2 d + 1 private ones.
    items, of_fcf, of_fedutr = TABLE_1[data]
    sizes, user = MethodSettings(width=32, catalogue=items), 32
    table, fused = (
        sum(int(np.prod(tensor.shape)) for tensor in spec(sizes))
        for spec in (table_specification, fusion_specification)
    )
    assert 4 * (table + user) == of_fcf
    assert fused - table == 32 * 32 + 3 * 32
    assert of_fedutr - 4 * (fused + user) == 4 * 1602
