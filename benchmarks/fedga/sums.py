"""Gain of summed transitions for silos of visits, compared with own counts and training.

python -m benchmarks.fedga.sums FOLDER [--cut random] [--clients 4] [--least 1 3] [--rounds 3] [--judged 2]
python -m benchmarks.fedga.sums FOLDER --cut device [--rounds 200]

The silos add the arrays of their services, and get the aggregator's real answer. Each silo is evaluated on its own
test examples and items; with --cut device on all test examples among all items. With --rounds SR-GNN is trained by
FedAvg as well, and fused with the silo's use of the sum. Every choice is made on validation examples.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file

from benchmarks.fedga.devices import SAMPLE
from benchmarks.fedga.methods import Values, average_silos, build_method
from benchmarks.fedga.rows import find_rates, read_rows
from benchmarks.fedga.sets import SESSIONS_OF_A_DEVICE, SessionSet, divide
from benchmarks.fedga.silos import USUAL
from client_service.data.sessions import TRAIN, SessionShard
from client_service.evaluation.metrics import measure_ranks
from client_service.evaluation.session_ranking import ScoreItems, build_floors, rank_prefixes
from client_service.joining_value.comparison import paired_ratio, reciprocal_ranks
from client_service.model_store.session_models import freeze_sessions
from client_service.sums.silo_sum import SumRound
from client_service.sums.transitions import Transitions, count_transitions, finish_transitions
from client_service.training.session_trainer import SessionTrainer
from client_service.training.training_state import RoundContext
from client_service.training.transition_scores import (
    VisitScores,
    score_by_transitions,
    score_visits,
    spread_examples,
)
from shared.method.parameters import Parameters
from shared.method.settings import MethodSettings
from shared.sums.transitions import hide_rare_transitions
from simulation.experiments.devices import (
    DeviceCrew,
    DevicePlan,
    DeviceRound,
    StatefulSilos,
    StatelessDevices,
    loss_of,
    train_devices,
)
from simulation.sessions.read import read_sessions

CPU = torch.device("cpu")
States = dict[str, torch.Tensor]


def add_parts(shards: Sequence[SessionShard], method: MethodSettings) -> dict[str, np.ndarray]:
    """Sums the silos' parts modulo 2^32."""
    total: dict[str, np.ndarray] = {}
    for shard in shards:
        for name, part in count_transitions(shard, method).items():
            total[name] = total[name] + part if name in total else part
    return total


def finish_sum(total: dict[str, np.ndarray], method: MethodSettings) -> Transitions:
    """Returns the transitions that silos make from the sum."""
    sums = {1: dict(hide_rare_transitions(method, total))}
    return finish_transitions(SumRound(None, method, 0, 1, 1, sums))


def rank_silos(ways: Sequence[ScoreItems], shards: Sequence[SessionShard], most: int) -> list[NDArray[np.int64]]:
    """Ranks each silo's test examples."""
    examples = [spread_examples(shard.test, most) for shard in shards]
    return [
        rank_prefixes(way, some, len(shard.item_ids)) for way, some, shard in zip(ways, examples, shards, strict=True)
    ]


def describe_ranks(ranks: Sequence[NDArray[np.int64]], alone: Sequence[NDArray[np.int64]] | None = None) -> Values:
    """Computes HR@20 and MRR@20 over all silos' examples, and of the worst silo.

    With the ranks of the silos alone: also the smallest and largest ratio of MRR@20 of a silo, and the number of
    silos with a 95 % interval below 1.
    """
    each = [dict(measure_ranks(one).values) for one in ranks]
    found = average_silos(each, [len(one) for one in ranks])["examples"]
    worst = {f"least {name}": min(one[name] for one in each) for name in ("hr20", "mrr20")}
    known = {name: found[name] for name in ("hr20", "mrr20")} | worst
    if alone is None:
        return known
    ratios = [
        ratio
        for one, other in zip(ranks, alone, strict=True)
        if (ratio := paired_ratio(reciprocal_ranks(one), reciprocal_ranks(other))) is not None
    ]
    known |= {"least ratio": min(one.mean for one in ratios), "greatest ratio": max(one.mean for one in ratios)}
    return known | {"silos below 1": float(sum(one.high < 1.0 for one in ratios))}


def count_own(shard: SessionShard) -> ScoreItems:
    """Counts successors of the last click in the silo's own sessions."""
    return build_floors(*shard.split_sessions(TRAIN), len(shard.item_ids))["successors"]


def pool_devices(found: SessionSet) -> tuple[SessionShard, SessionShard]:
    """Joins the training sessions of all devices, and their held-out ones, over all items."""
    lengths, ids = np.diff(found.sessions.starts), [str(one) for one in found.sessions.items]

    def pool(chosen: NDArray[np.bool_]) -> SessionShard:
        starts = np.concatenate([[0], np.cumsum(lengths[chosen])])
        clicks, splits = found.sessions.clicks[np.repeat(chosen, lengths)], found.sessions.splits[chosen]
        return SessionShard("all", ids, clicks, starts, splits, np.arange(len(ids)))

    is_training = found.sessions.splits == TRAIN
    return pool(is_training), pool(~is_training)


def train_silos(name: str, found: SessionSet, changes: dict[str, Any], given: argparse.Namespace) -> list[States]:
    """Trains the networks of the evaluated silos to the last round.

    name: fedavg, or local, which trains the evaluated silos alone.
    """
    judged = found.shards[: given.judged]
    taking, (strategy, method) = judged if name == "local" else found.shards, build_run_method(name, found, changes)
    crew = StatefulSilos(taking, method, CPU)
    one = last_round(DevicePlan(strategy, method, given.rounds, len(taking), 0), crew)
    clients = [crew.visit(silo.name, RoundContext(given.rounds, given.rounds, 0)) for silo in judged]
    if name != "local":
        for client in clients:
            client.load(Parameters(one.state.arrays))
    return [client.model.state_dict() for client in clients if isinstance(client, SessionTrainer)]


def train_pool(pool: SessionShard, found: SessionSet, given: argparse.Namespace) -> list[States]:
    """Trains the common network of devices over all items, SAMPLE devices a round."""
    rates = find_rates(read_rows(), part="devices", data=given.folder.name, method="fedavg", optimiser="adam")
    strategy, method = build_run_method("fedavg", found, {"optimiser": "adam", **(rates or USUAL)})
    one = last_round(DevicePlan(strategy, method, given.rounds, SAMPLE, 0), StatelessDevices(found.shards, method, CPU))
    training = SessionTrainer(pool, method, CPU)
    training.load(Parameters(one.state.arrays))
    return [training.model.state_dict()]


def build_run_method(strategy: str, found: SessionSet, changes: dict[str, Any]) -> tuple[str, MethodSettings]:
    """Returns the strategy and settings of its run."""
    return build_method(len(found.sessions.items), {**changes, "strategy": strategy})


def last_round(plan: DevicePlan, crew: DeviceCrew) -> DeviceRound:
    """Returns the last round of a run."""
    *_, last = train_devices(plan, crew, loss_of)
    return last


def load_or_train(file: str, given: argparse.Namespace, train: Callable[[], list[States]]) -> list[States]:
    """Loads stored networks; trains and stores them first where they are missing."""
    path = None if given.networks is None else given.networks / f"{given.folder.name}-{given.cut}-{file}.safetensors"
    if path is not None and path.is_file():
        kept: dict[str, States] = {}
        for key, value in load_file(path).items():
            place, _, name = key.partition("/")
            kept.setdefault(place, {})[name] = value
        return [kept[place] for place in sorted(kept, key=int)]
    found = train()
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({f"{place}/{name}": value for place, one in enumerate(found) for name, value in one.items()}, path)
    return found


def run_tables(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yields one row per way to score."""
    sessions, devices = read_sessions(given.folder), given.cut == "device"
    clients = int((sessions.splits == TRAIN).sum()) // SESSIONS_OF_A_DEVICE if devices else given.clients
    found = divide(sessions, given.cut, clients)
    adding, judged = ([one] for one in pool_devices(found)) if devices else (found.shards, found.shards[: given.judged])
    about = {"data": given.folder.name, "cut": given.cut, "clients": clients, "judged": len(judged)}
    changes: dict[str, Any] = {**USUAL, "basis.kind": "transitions"}
    changes |= {} if given.counters is None else {"basis.counters": given.counters}
    method = build_run_method("fedavg", found, changes)[1]
    alone = None

    def make_row(way: str, scores: Sequence[ScoreItems], **more: Any) -> dict[str, Any]:
        ranks = rank_silos(scores, judged, given.most)
        return {**about, "way": way, **more, **describe_ranks(ranks, alone)}

    if not devices:
        yield make_row("own successors", [count_own(one) for one in judged])
        own = [score_by_transitions(one, None).score for one in judged]
        alone = rank_silos(own, judged, given.most)
        yield {**about, "way": "own transitions", **describe_ranks(alone)}
    began = time.perf_counter()
    total = add_parts(adding, method)
    about["bytes"] = int(sum(part.nbytes for part in total.values()))
    seconds = (time.perf_counter() - began) / len(adding)
    counted: dict[int, list[VisitScores]] = {}
    for least in given.least:
        basis = method.basis.model_copy(update={"least_pairs": least})
        known = finish_sum(total, method.model_copy(update={"basis": basis}))
        began = time.perf_counter()
        counted[least] = [score_visits(one, known) for one in judged]
        took = {"seconds of a part": seconds, "of scores": (time.perf_counter() - began) / len(judged)}
        summed = [one.summed for one in counted[least] if one.summed is not None]
        chosen = [(one.decay, one.repeats, one.second) for one in summed[:4]]
        yield make_row("sum", [one.score for one in summed], least=least, chosen=chosen, **took)
        if not devices:
            shares = [one.share for one in counted[least]]
            yield make_row("sum or own", [one.score for one in counted[least]], least=least, shares=shares)
    if not given.rounds:
        return
    number, fedavg = len(found.shards), build_run_method("fedavg", found, changes)[1]

    def open_networks(name: str, train: Callable[[], list[States]]) -> list[SessionTrainer]:
        """Opens the networks of the evaluated silos."""
        opened = [SessionTrainer(one, fedavg, CPU) for one in judged]
        for one, state in zip(opened, load_or_train(f"{number}-{name}-{given.rounds}", given, train), strict=True):
            one.model.load_state_dict(state)
        return opened

    if devices:
        trained = open_networks("fedavg", lambda: train_pool(judged[0], found, given))
    else:
        local = open_networks("local", lambda: train_silos("local", found, changes, given))
        yield make_row("local", [freeze_sessions("", one).score for one in local], rounds=given.rounds)
        trained = open_networks("fedavg", lambda: train_silos("fedavg", found, changes, given))
    yield make_row("FedAvg", [freeze_sessions("", one).score for one in trained], rounds=given.rounds)
    for least, scores in counted.items():
        for training, one in zip(trained, scores, strict=True):
            training.transitions = one
        mixed = [freeze_sessions("", training) for training in trained]
        yield make_row(
            "fused", [one.score for one in mixed], least=least, network=[round(one.share, 3) for one in mixed]
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cut", default="random")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--least", type=int, nargs="+", default=[1, 3], help="basis.least_pairs")
    parser.add_argument("--counters", type=int, help="basis.counters")
    parser.add_argument(
        "--rounds", type=int, default=0, help="of FedAvg and of each silo's own network; 200 of devices"
    )
    parser.add_argument("--judged", type=int, help="number of silos that are evaluated; their own networks are trained")
    parser.add_argument("--networks", type=Path, help="folder where trained networks of silos are kept, and taken up")
    parser.add_argument("--most", type=int, default=1 << 30, help="test examples of a silo, spread evenly")
    for row in run_tables(parser.parse_args()):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
