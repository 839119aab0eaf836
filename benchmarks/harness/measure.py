"""Measurement of one cell: a federation, floors, the centralised reference, or a table's own.

The centralised reference is the clients' encoder on the whole data set as one shard, evaluated client by client. It
has the edges that the cut drops. It ranks, for each client's users, that client's items alone, so that its figures
are comparable; its best round is the one with the best client mean on validation items.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.harness.groups import measure_groups
from benchmarks.harness.plan import CENTRALISED, FLOORS, SPECIAL, UNTRAINED, special_functions
from client_service.data.interaction_files import load_shard, with_places
from client_service.data.interactions import Shard
from client_service.evaluation.metrics import LABELS, METRICS, PRIMARY, Measures
from client_service.evaluation.ranking import TopItems, measure_test, measure_validation, sample_validation_users
from client_service.federation.best_model import load_model
from client_service.model_store.model_files import ServedItems, freeze
from client_service.runtime.device import DeviceChoice, choose_device, pin_threads
from client_service.settings import ClientSettings
from client_service.tasks.items import ITEMS
from client_service.training.item_trainer import ItemTrainer
from client_service.training.spectrum_cache import cached_spectrum
from client_service.training.training_state import RoundContext
from shared.errors import DataError
from shared.method.anchor import choose_size
from shared.method.declaration import Counts
from shared.method.parameters import Parameters
from shared.method.settings import MethodSettings
from shared.strategies import build_strategy
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import Outcome, ignore_progress
from simulation.experiments.floors import FLOORS as FLOOR_NAMES
from simulation.experiments.floors import START, floor_tops, measure_all_floors
from simulation.experiments.in_process import simulate_experiment
from simulation.experiments.pooled import ClientSlice, sorted_places
from simulation.reports.report import build_report


def locate_client(whole: Shard, client: Shard) -> ClientSlice:
    """Finds the rows of a client's users and items in the whole; ids are sorted."""
    return ClientSlice(
        client, sorted_places(whole.user_ids, client.user_ids), sorted_places(whole.item_ids, client.item_ids)
    )


@dataclass(frozen=True)
class WholeTraining:
    """Lists of the best round by client, and the cost of training."""

    tops: dict[str, TopItems]
    validation: dict[str, float]
    best_round: int
    seconds: dict[str, float]


def train_whole(
    folder: Path, clients: Sequence[Shard], method: MethodSettings, rounds: int, seed: int, device: torch.device
) -> tuple[WholeTraining, list[ClientSlice]]:
    """Trains as many rounds as the federation has, with the clients' local epochs."""
    whole = load_shard(folder)
    views = [locate_client(whole, client) for client in clients]
    start = time.perf_counter()
    spectrum = cached_spectrum(whole, method.cutoff, None)
    spectrum_seconds = time.perf_counter() - start
    training = ItemTrainer(whole, spectrum, method, device)
    training.initialise(seed)
    strategy, best, spent = build_strategy("local", method), _better_round(training, views, 0, None), 0.0
    for number in range(1, rounds + 1):
        began = time.perf_counter()
        training.context = RoundContext(number, rounds, seed)
        strategy.fit_round(training, Parameters({}))
        spent += time.perf_counter() - began
        best = _better_round(training, views, number, best)
    total = time.perf_counter() - start  # the choice of where to start and every round's evaluation too
    return replace(best, seconds={"spectrum": spectrum_seconds, "training": spent, "total": total}), views


def _better_round(
    training: ItemTrainer, views: Sequence[ClientSlice], number: int, best: WholeTraining | None
) -> WholeTraining:
    """Returns the better of this round and the best so far.

    By the client mean of the primary measure on validation items.
    """
    ranker = freeze(f"whole.{number}", training).ranker
    tops = {view.client: view.restrict_lists(ranker.top, training.shard.train.shape[1]) for view in views}
    validation = {}
    for client in views:
        users = sample_validation_users(client.shard.train.shape[0], seed=0)
        validation[client.client] = measure_validation(client.shard, tops[client.client], users).primary_value
    if best is not None and np.mean([*best.validation.values()]) >= np.mean([*validation.values()]):
        return best
    return WholeTraining(tops, validation, number, {})


def measure_on_test(trained: WholeTraining, views: Sequence[ClientSlice]) -> list[dict[str, Any]]:
    """Measures the test figures of every client, once."""
    figures = []
    for client in views:
        users, items = client.shard.train.shape
        measures = measure_test(client.shard, trained.tops[client.client])
        figures.append(
            {
                "client": client.client,
                **measures.values,
                f"valid_{PRIMARY}": trained.validation[client.client],
                "test_users": measures.users,
                "best_round": trained.best_round,
                "users": users,
                "items": items,
                "bytes_up": 0,
                "bytes_down": 0,
            }
        )
    return figures


Figures = dict[str, Any]
THREADS = 1
FLOOR_LABELS = {
    "popularity": "popularity",
    "lowpass": "low-pass",
    "ridge": "ridge",
    "ease": "EASE",
    START: UNTRAINED,
}


@dataclass(frozen=True)
class Work:
    """Work of one cell's process.

    state: folder that is removed afterwards. table, root: of the run.py. own_cache: takes no results over from other
    cells, so that its seconds are those of the whole run.
    """

    table: str
    root: Path
    shards: tuple[Path, ...]
    whole: Path
    state: Path
    strategy: str
    method: MethodSettings
    rounds: int
    seed: int
    groups: bool
    extra: bool
    device: DeviceChoice = "auto"
    parameters: Figures | None = None
    own_cache: bool = False
    privacy: Figures = field(default_factory=dict)

    @property
    def cache_folder(self) -> Path:
        """Folder of results that follow from the shards.

        It is for all cells with these shards, or for this one.
        """
        return (self.state if self.own_cache else self.shards[0].parent) / "kept"

    def read_clients(self) -> list[Shard]:
        """Reads the shards."""
        return [load_shard(path) for path in self.shards]


class CountedExperiment(Experiment):
    """Experiment whose silos share counts of users, items and edges.

    They agree on the anchor's size that follows.
    """

    @cached_property
    def anchor_size(self) -> Counts:
        """Size of the anchor by the counts of all silos."""
        graphs = [load_shard(path).train for path in self.shards]
        counts = [Counts(users=graph.shape[0], items=graph.shape[1], edges=graph.nnz) for graph in graphs]
        return choose_size(self.method.anchor, counts)[0]

    def make_client_settings(self, shard: Path, *, aggregator_url: str, port: int = 0) -> ClientSettings:
        """Adds a policy that allows counts and this size of the anchor."""
        settings = super().make_client_settings(shard, aggregator_url=aggregator_url, port=port)
        agreed = settings.policy.model_copy(update={"counts": True, "anchor_size": self.anchor_size})
        return settings.model_copy(update={"policy": agreed})


def measure_cell(work: Work) -> Figures:
    """Measures one cell; the figures are added to its line of results."""
    pin_threads(THREADS)
    kinds: dict[str, Callable[[Work], Figures]] = {
        FLOORS: measure_floor_rows,
        CENTRALISED: measure_centralised,
        SPECIAL: measure_own_row,
    }
    return kinds.get(work.strategy, measure_federation)(work)


def measure_federation(work: Work) -> Figures:
    """Runs the real services in this process, from start to end."""
    kind = CountedExperiment if work.method.anchor.size == "counts" else Experiment
    experiment = kind(
        work.shards,
        work.state,
        work.method,
        strategy=work.strategy,
        rounds=work.rounds,
        seed=work.seed,
        device=work.device,
        threads=THREADS,
        cache=work.cache_folder,
        privacy=work.privacy,
    )
    outcome = simulate_experiment(experiment, ignore_progress)
    report = build_report(experiment, outcome)
    clients = [_client_figures(client, report, outcome) for client in report["clients"]]
    if work.groups:
        device = choose_device(work.device)[0]
        _add_groups(clients, work.read_clients(), lambda shard: _best_lists(experiment, shard, device))
    seconds = {name: report["seconds"][name] for name in ("spectrum", "training", "evaluation", "overhead", "total")}
    figures = {"clients": clients, "seconds": seconds}
    if work.privacy:
        figures["spent"] = {name: status["epsilon"] for name, status in report["privacy"].items()}
    if work.extra:
        figures["extra"] = special_functions(work.table, work.root)["extra"](work, experiment, outcome)
    return figures


def served_figures(client: Figures) -> Figures:
    """Returns a client's sizes, METRICS of its served model, and its scalars."""
    kept = ("client", "users", "items", "edges", "test_users", "best_round", "rho", "rhobar", "margin")
    return {key: client[key] for key in kept} | {metric: client[LABELS[metric].key] for metric in METRICS}


def _client_figures(client: Figures, report: Figures, outcome: Outcome) -> Figures:
    name = client["client"]
    rounds = {entry.round: entry.values[PRIMARY] for entry in outcome.qualities[name].rounds}
    return {
        **served_figures(client),
        f"valid_{PRIMARY}": rounds.get(client["best_round"]),
        "bytes_up": sum(report["bytes_up"][name]),
        "bytes_down": sum(report["bytes_down"][name]),
    }


def _best_lists(experiment: Experiment, shard: Shard, device: torch.device) -> TopItems:
    """Returns the lists of the model that the client's validation data chose."""
    path = next(path for path in experiment.shards if path.name == shard.name)
    shard = with_places(shard, experiment.catalogue, experiment.agreed_method.catalogue)
    served = load_model(ITEMS, shard, experiment.models_folder(path), device)
    if served is None:
        raise DataError(f"{path.name}: expected the kept model of a finished run, got none")
    assert isinstance(served, ServedItems)
    return served.ranker.top


def _add_groups(clients: list[Figures], shards: list[Shard], top_of: Callable[[Shard], TopItems]) -> None:
    by_name = {shard.name: shard for shard in shards}
    for client in clients:
        shard = by_name[client["client"]]
        client["groups"] = measure_groups(shard, top_of(shard))


def measure_centralised(work: Work) -> Figures:
    """Measures the same encoder on all data."""
    device = choose_device(work.device)[0]
    trained, views = train_whole(work.whole, work.read_clients(), work.method, work.rounds, work.seed, device)
    began = time.perf_counter()
    clients = measure_on_test(trained, views)
    seconds = trained.seconds | {"total": trained.seconds["total"] + time.perf_counter() - began}
    if work.groups:
        _add_groups(clients, [view.shard for view in views], lambda shard: trained.tops[shard.name])
    return {"clients": clients, "seconds": seconds}


def measure_floor_rows(work: Work) -> Figures:
    """Measures every floor of every client; None for a floor that some clients lack."""
    measured = measure_all_floors(work.shards, work.method.cutoff, cache_folder=lambda _: None, observe=lambda _: None)
    shards = {shard.name: shard for shard in work.read_clients()}
    tops = {name: floor_tops(shard, work.method.cutoff, None) for name, shard in shards.items()} if work.groups else {}
    rows: dict[str, list[Figures] | None] = {}
    for floor in (*FLOOR_NAMES, START):
        clients = [
            _floor_figures(shards[name], floors[floor], tops.get(name, {}).get(floor))
            for name, floors in measured.items()
        ]
        rows[FLOOR_LABELS[floor]] = None if None in clients else [client for client in clients if client is not None]
    return {"floors": rows}


def _floor_figures(shard: Shard, measures: Measures | None, top: TopItems | None) -> Figures | None:
    if measures is None:
        return None
    users, items = shard.train.shape
    sizes = {"users": users, "items": items, "test_users": measures.users}
    figures = {"client": shard.name, **measures.values, **sizes}
    return figures | ({} if top is None else {"groups": measure_groups(shard, top)})


def measure_own_row(work: Work) -> Figures:
    """Measures a row by the table's own run.py."""
    figures: Figures = special_functions(work.table, work.root)["measure"](work)
    clients = figures.pop("clients", [])
    return {"clients": clients, "extra": figures}
