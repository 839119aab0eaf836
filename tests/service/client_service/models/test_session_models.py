"""SR-GNN and TAGNN: the worked graph, padding without effect, the naive formulas, and what clients may exchange."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from client_service.data.prefixes import Prefixes, list_prefixes
from client_service.data.sessions import SessionShard, shuffle_batches
from client_service.evaluation.metrics import measure_ranks
from client_service.evaluation.session_ranking import build_floors, measure_prefixes, rank_targets
from client_service.model_store.session_models import freeze_sessions
from client_service.models.sequence import tagnn
from client_service.models.sequence.srgnn import SRGNN, session_graphs
from client_service.models.sequence.tagnn import TAGNN
from client_service.runtime.device import pin_threads
from client_service.training.session_trainer import MODELS, SessionTrainer
from client_service.training.training_state import RoundContext, load_named
from shared.errors import ProtocolError, SettingsError
from shared.method.parameters import Parameters
from shared.method.settings import MethodSettings, method_settings
from shared.method.tensors import EXCHANGES, initial_parameters
from shared.strategies import STRATEGIES, build_strategy

A, B, C = 0, 1, 2
SESSION = np.array([A, B, A, C])
STARTS = np.array([0, 4])
TRAINED = np.zeros(1, dtype=np.int8)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def single_thread() -> None:
    """As a service does: several threads of torch and of linear algebra in one process can wait for each other."""
    pin_threads(1)


def method(**changes: object) -> MethodSettings:
    return method_settings(**{"width": 4, "catalogue": 6, "model": "srgnn", "batch_size": 3, **changes})


def model(kind: str) -> SRGNN:
    found = MODELS[kind](6, 4)
    tensors = sorted(EXCHANGES[kind].tensors(method()))
    load_named(found, Parameters(initial_parameters(tensors, 1, exact=False)))
    return found.double()


def test_the_worked_session_graph() -> None:
    graphs = session_graphs(torch.tensor([[A, B, A, C]]), torch.tensor([4]))
    assert graphs.nodes.tolist() == [[A, B, C]] and graphs.places.tolist() == [[0, 1, 0, 2]]
    assert graphs.incoming[0].tolist() == [[0, 1, 0], [1, 0, 0], [1, 0, 0]]
    assert graphs.outgoing[0].tolist() == [[0, 0.5, 0.5], [1, 0, 0], [0, 0, 0]]


def test_an_edge_that_repeats_counts_once() -> None:
    graphs = session_graphs(torch.tensor([[A, B, A, B, A, C]]), torch.tensor([6]))
    assert graphs.outgoing[0, 0].tolist() == [0, 0.5, 0.5]


def test_the_worked_prefixes_and_measures() -> None:
    found = list_prefixes(SESSION, STARTS)
    assert [SESSION[b:e].tolist() for b, e in zip(found.begin, found.end, strict=True)] == [[A], [A, B], [A, B, A]]
    assert found.targets.tolist() == [B, A, C]
    measures = measure_ranks(np.array([1, 3, 25])).values
    assert measures["hr20"] == pytest.approx(2 / 3) and measures["mrr20"] == pytest.approx((1 + 1 / 3) / 3)


def test_a_long_prefix_is_its_last_clicks() -> None:
    found = list_prefixes(SESSION, STARTS, longest=2)
    assert [SESSION[b:e].tolist() for b, e in zip(found.begin, found.end, strict=True)] == [[A], [A, B], [B, A]]


def test_ties_fall_by_the_order_of_items_and_a_diverged_model_hits_nothing() -> None:
    scores = np.array([[1, 1, 0], [0, 2, 1], [np.nan, np.nan, np.nan]], dtype=np.float32)
    assert rank_targets(scores, np.array([1, 1, 0])).tolist() == [2, 1, 0]


@pytest.mark.parametrize("kind", MODELS)
def test_padding_changes_no_score(kind: str) -> None:
    one, long = torch.tensor([[A, B, A]]), torch.tensor([[A, B, A, 5, 4], [C, B, C, 3, 0]])
    alone = model(kind)(one, torch.tensor([3]))
    beside = model(kind)(long, torch.tensor([3, 5]))
    torch.testing.assert_close(alone[0], beside[0])


def test_srgnn_is_its_formula() -> None:
    net = model("srgnn")
    own = dict(net.named_parameters())
    x = own["item.table"][[A, B, C]]
    incoming = torch.tensor([[0, 1, 0], [1, 0, 0], [1, 0, 0]], dtype=torch.float64)
    outgoing = torch.tensor([[0, 0.5, 0.5], [1, 0, 0], [0, 0, 0]], dtype=torch.float64)
    linear = {side: x @ own[f"edges.{side}.weight"].T + own[f"edges.{side}.bias"] for side in ("incoming", "outgoing")}
    message = torch.cat(
        [
            incoming @ linear["incoming"] + own["edges.incoming_bias"],
            outgoing @ linear["outgoing"] + own["edges.outgoing_bias"],
        ],
        1,
    )
    h = net.cell(message, x)[[0, 1, 0, 2]]
    both = h[3] @ own["attention.last.weight"].T + own["attention.last.bias"]
    each = h @ own["attention.each.weight"].T + own["attention.each.bias"]
    alpha = torch.sigmoid(both + each) @ own["attention.query.weight"][0]
    s = own["transform.weight"] @ torch.cat([alpha @ h, h[3]]) + own["transform.bias"]
    found = net(torch.tensor([[A, B, A, C]]), torch.tensor([4]))
    torch.testing.assert_close(found[0], own["item.table"] @ s)


@pytest.mark.parametrize("chunk", [1, 4, 4096])
def test_tagnn_in_pieces_is_its_formula(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tagnn, "PIECE", 0)
    monkeypatch.setattr(tagnn, "LEAST_ITEMS", chunk)
    net = model("tagnn")
    assert isinstance(net, TAGNN)
    clicks, lengths = torch.tensor([[A, B, A], [C, B, 0]]), torch.tensor([3, 2])
    sessions, hidden, _ = net.encode(clicks, lengths)
    for row, length in enumerate(lengths.tolist()):
        h = hidden[row, :length]
        beta = torch.softmax((h @ net.target.weight.T) @ net.item.table.T, dim=0)  # (l, N)
        expected = ((sessions[row] + beta.T @ h) * net.item.table).sum(1)
        torch.testing.assert_close(net(clicks, lengths)[row], expected)


@pytest.mark.parametrize("kind", MODELS)
def test_what_can_be_exchanged_is_the_whole_model(kind: str) -> None:
    shapes = {tensor.name: tensor.shape for tensor in EXCHANGES[kind].tensors(method())}
    assert shapes == {name: tuple(value.shape) for name, value in MODELS[kind](6, 4).named_parameters()}
    beside = sum(int(np.prod(shape)) for shape in shapes.values()) - 6 * 4
    assert beside == 15 * 16 + 14 * 4 + (16 if kind == "tagnn" else 0)


def shard(clicks: list[int], name: str = "shop") -> SessionShard:
    places, rows = np.unique(clicks, return_inverse=True)
    return SessionShard(
        name, tuple("abcdef"[place] for place in places), rows, np.array([0, len(rows)]), TRAINED, places
    )


@pytest.mark.parametrize("kind", MODELS)
def test_training_learns_a_chain(kind: str) -> None:
    chain = [A, B, C, 3, 4, 5] * 8
    training = SessionTrainer(shard(chain), method(model=kind, learning_rate=0.05, local_epochs=20), CPU)
    training.train()
    first = training.figures.loss
    training.train()
    assert training.figures.loss < min(first, 0.5)


@pytest.mark.parametrize("optimiser", ["adam", "rmsprop", "sgd"])
@pytest.mark.parametrize("kind", MODELS)
def test_rows_of_items_that_the_silo_has_not_leave_as_they_came(kind: str, optimiser: str) -> None:
    # Adam makes a whole step of the least gradient, such as that of the weight decay: such rows were drawn to 0.
    changes = {"model": kind, "optimiser": optimiser, "learning_rate": 0.1, "sessions.weight_decay": 1e-3}
    training = SessionTrainer(shard([A, B, A, C]), method(**changes), CPU)
    came = Parameters(initial_parameters(EXCHANGES[kind].tensors(method()), 7, exact=False))
    training.load(came)
    training.train()
    left = training.arrays()
    moved = (left["item.table"] != came.arrays["item.table"]).any(axis=1)
    assert moved.tolist() == [True] * 3 + [False] * 3
    assert all((left[name] != came.arrays[name]).any() for name in left)


def test_the_whole_catalogue_can_be_trained() -> None:
    own, whole = (
        SessionTrainer(shard([A, B, A, C]), method(**{"sessions.candidates": candidates}), CPU)
        for candidates in ("own", "catalogue")
    )
    before = whole.arrays()["item.table"]
    for training in (own, whole):
        training.train()
    assert (whole.arrays()["item.table"] != before).any(axis=1).all() and whole.figures.loss > own.figures.loss
    served = [freeze_sessions("v", training) for training in (own, whole)]
    assert [one.score(training.shard.train).shape for one, training in zip(served, (own, whole), strict=True)] == [
        (3, 3),
        (3, 3),
    ]
    clicks, lengths = map(torch.from_numpy, own.shard.train.pad())
    expected = whole.model(clicks, lengths).detach().numpy()[:, :3]  # of these items the places are their rows
    np.testing.assert_allclose(served[1].score(own.shard.train), expected, rtol=1e-5)


def test_the_learning_rate_falls_with_the_rounds() -> None:
    training = SessionTrainer(shard([A, B, A, C]), method(**{"sessions.rate_step": 3, "learning_rate": 0.1}), CPU)
    rates = []
    for number in (1, 3, 4, 7):
        training.context = RoundContext(number, 9, 0)
        training.train()
        [optimiser] = training._optimisers.values()
        rates.append(optimiser.param_groups[0]["lr"])
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.001])


def test_another_table_is_refused() -> None:
    training = SessionTrainer(shard([A, B, A, C]), method(), CPU)
    with pytest.raises(ProtocolError, match=r"item.table: expected shape \[6, 4\], got \[7, 4\]"):
        training.load(Parameters({"item.table": np.zeros((7, 4), dtype=np.float32)}))


def test_the_same_round_trains_the_same() -> None:
    one, other = (SessionTrainer(shard([A, B, A, C, B]), method(), CPU) for _ in range(2))
    for training in (one, other):
        training.train()
    for name, value in one.arrays().items():
        assert value.tobytes() == other.arrays()[name].tobytes()


def test_batches_hold_every_example_once_and_little_padding() -> None:
    lengths = np.random.default_rng(0).integers(1, 20, 1000)
    batches = list(shuffle_batches(lengths, 64, np.random.default_rng(1)))
    assert sorted(np.concatenate(batches).tolist()) == list(range(1000))
    padded = sum(lengths[rows].max() * len(rows) for rows in batches)
    assert padded < 1.2 * lengths.sum()


def test_floors_count() -> None:
    clicks, starts = np.array([A, B, A, B, C, A, B]), np.array([0, 4, 7])
    floors = build_floors(clicks, starts, 3)
    asked = Prefixes(np.array([C, A, B]), np.array([0]), np.array([2]))
    assert floors["popularity"](asked).tolist() == [[3, 3, 1]]
    assert floors["successors"](asked).tolist() == [[0, 3, 0]]  # B -> C lies between two sessions only where they do
    assert floors["item-knn"](asked)[0, A] == 0.0 < floors["item-knn"](asked)[0, B]
    assert measure_prefixes(floors["successors"], asked, 3).values["hr10"] == 1.0


@pytest.mark.parametrize("name", ["fedavg", "fedprox", "fedadam", "fedyogi", "fedga"])
def test_strategies_train_session_models(name: str) -> None:
    training = SessionTrainer(shard([A, B, A, C]), method(), CPU)
    strategy = build_strategy(name, method())
    sent = strategy.fit(training, Parameters(strategy.start(method(), 0)))
    assert set(sent.arrays) == {tensor.name for tensor in EXCHANGES["srgnn"].tensors(method())}
    assert strategy.shares_items(method())


def test_what_sessions_have_not_is_refused() -> None:
    training = SessionTrainer(shard([A, B]), method(), CPU)
    with pytest.raises(SettingsError, match="expected one that needs no measure, as task 'sessions' has none"):
        training.measure("mean_margin")
    with pytest.raises(SettingsError, match=r"expected one for task 'sessions' \(srgnn, tagnn\), got 'lgcn'"):
        SessionTrainer(shard([A, B]), method(model="lgcn"), CPU)
    with pytest.raises(SettingsError, match="expected an encoder beneath both MLPs"):
        STRATEGIES["lpsfed"](method())
