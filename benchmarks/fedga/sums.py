"""What a sum of transitions brings silos of visits, beside their own counts and beside what they train together.

python -m benchmarks.fedga.sums FOLDER [--cut random] [--clients 4] [--least 1 3] [--counters N] [--rounds 0]
python -m benchmarks.fedga.sums FOLDER --cut device

The silos add what their services add, and what the aggregator hands out is handed out. Each silo is judged on its own
test examples among its own items; with --cut device all test examples among all items, by the sum alone. With --rounds
SR-GNN is trained by FedAvg as well, and fused. Whatever is chosen is chosen on validation examples.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.fedga.methods import Values, average_silos, build_method
from benchmarks.fedga.sets import SESSIONS_OF_A_DEVICE, SessionSet, divide
from benchmarks.fedga.silos import USUAL
from client_service.data.sessions import TRAIN, SessionShard
from client_service.evaluation.session_ranking import ScoreItems, floors_of, measure_prefixes
from client_service.serving.next_items import freeze_sessions
from client_service.sums.silo_sum import SumRound
from client_service.sums.transitions import Transitions, count_transitions, finish_transitions
from client_service.training.session_trainer import SessionTrainer
from client_service.training.training_state import RoundContext
from client_service.training.transition_scores import score_by_transitions, spread_examples
from shared.method.parameters import Parameters
from shared.method.settings import MethodSettings
from shared.sums.transitions import hide_rare_transitions
from simulation.experiments.devices import DevicePlan, LastingSilos, loss_of, train_devices
from simulation.sessions.read import read_sessions

CPU = torch.device("cpu")


def add_parts(shards: Sequence[SessionShard], method: MethodSettings) -> dict[str, np.ndarray]:
    """The sum of what silos add, modulo 2^32."""
    total: dict[str, np.ndarray] = {}
    for shard in shards:
        for name, part in count_transitions(shard, method).items():
            total[name] = total[name] + part if name in total else part
    return total


def hand_out(total: dict[str, np.ndarray], method: MethodSettings) -> Transitions:
    """What the silos make of the sum."""
    sums = {1: dict(hide_rare_transitions(method, total))}
    return finish_transitions(SumRound(None, method, 0, 1, 1, sums))


def judge(ways: Sequence[ScoreItems], shards: Sequence[SessionShard], most: int) -> Values:
    """HR@20 and MRR@20 over all silos' test examples, and those of the worst silo."""
    examples = [spread_examples(shard.test, most) for shard in shards]
    each = [
        dict(measure_prefixes(way, some, len(shard.item_ids)).values)
        for way, some, shard in zip(ways, examples, shards, strict=True)
    ]
    found = average_silos(each, [len(some) for some in examples])["examples"]
    worst = {f"least {name}": min(one[name] for one in each) for name in ("hr20", "mrr20")}
    return {name: found[name] for name in ("hr20", "mrr20")} | worst


def count_own(shard: SessionShard) -> ScoreItems:
    """What followed the last click in the silo's own sessions."""
    return floors_of(*shard.split_sessions(TRAIN), len(shard.item_ids))["successors"]


def pool_devices(found: SessionSet) -> tuple[SessionShard, SessionShard]:
    """The training sessions of all devices, which add up to what each adds, and their held-out ones; all items."""
    lengths, ids = np.diff(found.sessions.starts), [str(one) for one in found.sessions.items]

    def pool(chosen: NDArray[np.bool_]) -> SessionShard:
        starts = np.concatenate([[0], np.cumsum(lengths[chosen])])
        clicks, splits = found.sessions.clicks[np.repeat(chosen, lengths)], found.sessions.splits[chosen]
        return SessionShard("all", ids, clicks, starts, splits, np.arange(len(ids)))

    is_training = found.sessions.splits == TRAIN
    return pool(is_training), pool(~is_training)


def run_tables(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A line for each way to score."""
    sessions = read_sessions(given.folder)
    devices = given.cut == "device"
    clients = int((sessions.splits == TRAIN).sum()) // SESSIONS_OF_A_DEVICE if devices else given.clients
    found = divide(sessions, given.cut, clients)
    adding, judged = ([one] for one in pool_devices(found)) if devices else (found.shards, found.shards)
    about = {"data": given.folder.name, "cut": given.cut, "clients": clients}
    changes = {**USUAL, "strategy": "fedavg", "basis.kind": "transitions"}
    changes |= {} if given.counters is None else {"basis.counters": given.counters}
    strategy, method = build_method(len(found.sessions.items), changes)
    if not devices:
        yield {**about, "way": "own successors", **judge([count_own(one) for one in judged], judged, given.most)}
        own = [score_by_transitions(one, None).score for one in judged]
        yield {**about, "way": "own transitions", **judge(own, judged, given.most)}
    began = time.perf_counter()
    total = add_parts(adding, method)
    about["bytes"] = int(sum(part.nbytes for part in total.values()))
    seconds = (time.perf_counter() - began) / len(adding)
    for least in given.least:
        basis = method.basis.model_copy(update={"least_pairs": least})
        known = hand_out(total, method.model_copy(update={"basis": basis}))
        began = time.perf_counter()
        fused = [score_by_transitions(one, known) for one in judged]
        took = {"seconds of a part": seconds, "of scores": (time.perf_counter() - began) / len(judged)}
        way = {"way": "sum", "least": least, "chosen": [(one.decay, one.repeats) for one in fused[:4]]}
        yield {**about, **way, **took, **judge([one.score for one in fused], judged, given.most)}
    if not given.rounds or devices:
        return
    crew = LastingSilos(found.shards, method, CPU)
    for one in train_devices(DevicePlan(strategy, method, given.rounds, clients, 0), crew, loss_of):
        print(json.dumps({"round": one.number, "loss": one.loss}), flush=True)
    trained = []
    for shard in found.shards:
        training = crew.visit(shard.name, RoundContext(given.rounds, given.rounds, 0))
        assert isinstance(training, SessionTrainer)
        training.load(Parameters(one.state.arrays))
        trained.append(training)
    plain = [freeze_sessions("", training) for training in trained]
    yield {**about, "way": "FedAvg", "rounds": given.rounds, **judge([way.score for way in plain], judged, given.most)}
    for training, scores in zip(trained, fused, strict=True):
        training.transitions = scores
    mixed = [freeze_sessions("", training) for training in trained]
    way = {"way": "FedAvg and sum", "least": given.least[-1], "shares": [round(one.share, 3) for one in mixed[:4]]}
    yield {**about, **way, **judge([one.score for one in mixed], judged, given.most)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cut", default="random")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--least", type=int, nargs="+", default=[1, 3], help="basis.least_pairs")
    parser.add_argument("--counters", type=int, help="basis.counters")
    parser.add_argument("--rounds", type=int, default=0, help="of FedAvg; it is fused with the last of --least")
    parser.add_argument("--most", type=int, default=1 << 30, help="test examples of a silo, spread evenly")
    for row in run_tables(parser.parse_args()):
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
