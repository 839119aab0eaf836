"""Which server optimiser trains session models in fewer rounds? Devices, a sample of them a round.

python -m benchmarks.fedga.run devices FOLDER [--rounds 150] [--seeds 3] [--ablation]
python -m benchmarks.fedga.run silos FOLDER [--clients 4] [--rounds 5] [--strategies fedavg fedga local]
python -m benchmarks.fedga.run central FOLDER [--rounds 5] [--set width=100]

FOLDER: train_sessions.txt and test.txt. Rates are chosen by validation with a seed of their own, at TUNED_ROUNDS
rounds; the best round by validation MRR@20; test examples are read once, with the model of that round. Each run appends
a line to results.jsonl; `python -m benchmarks.fedga.tables` makes tables of them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.fedga.sets import SessionSet, divide, measure_floors, measure_silo_floors, open_devices
from client_service.learning.named import Moment
from client_service.sessions.measures import measure_prefixes, measure_ranks
from client_service.sessions.prefixes import Prefixes
from client_service.sessions.shard import SessionShard
from client_service.sessions.training import SessionTraining, score_examples
from shared.method.exchanged import Parameters
from shared.method.settings import MethodSettings, method_settings
from simulation.devices import DevicePlan, DeviceRound, train_devices
from simulation.sessions.crews import LastingSilos, PassingDevices, loss_of
from simulation.sessions.read import read_sessions

RESULTS = Path(__file__).with_name("results.jsonl")
SAMPLE, EVERY, TUNED_ROUNDS, TUNING_SEED = 20, 10, 60, 100
CLIENT_RATES, ALONE_RATES, SERVER_RATES = (
    (0.03, 0.1),
    (0.01, 0.03, 0.1, 0.3),
    (0.03, 0.1, 0.3),
)  # of clients without a server rate: ALONE
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"strategy": "fedavg"},
    "fedprox": {"strategy": "fedprox"},
    "fedadam": {"strategy": "fedadam"},
    "fedyogi": {"strategy": "fedyogi"},
    "fedga": {"strategy": "fedga"},
}
ABLATION: dict[str, dict[str, Any]] = {
    "adam + DRA": {"strategy": "fedadam", "server_step.magnitudes": "computed"},
    "yogi + DRA": {"strategy": "fedyogi", "server_step.magnitudes": "computed"},
    "clip, no DRA": {"strategy": "fedga", "server_step.magnitudes": "off"},
    "ramp, no DRA": {"strategy": "fedga", "server_step.magnitudes": "off", "server_step.second_moment": "ramp"},
    "ramp": {"strategy": "fedga", "server_step.second_moment": "ramp"},
}
CPU = torch.device("cpu")


def settings(items: int, changes: dict[str, Any]) -> tuple[str, MethodSettings]:
    """The strategy, and the method's settings with these changes."""
    values = {"model": "srgnn", "width": 64, "catalogue": items, "batch_size": 50, **changes}
    return values.pop("strategy"), method_settings(**values)


def judge_with(training: SessionTraining, shared: Parameters, examples: Prefixes) -> dict[str, float]:
    """Measures of these parameters, all items candidates."""
    training.load(shared)
    every = torch.arange(training.method.catalogue)
    return dict(measure_prefixes(lambda e: score_examples(training.model, e, every), examples, every.numpy()).values)


def run_devices(found: SessionSet, changes: dict[str, Any], rounds: int, seed: int) -> dict[str, Any]:
    """One run: what validation said every EVERY rounds, and the test figures of the best of them."""
    strategy, method = settings(len(found.sessions.items), changes)
    crew, judge, valid = (
        PassingDevices(found.shards, method, CPU),
        SessionTraining(found.shards[0], method, CPU),
        found.valid,
    )
    curve: list[dict[str, float]] = []
    best: tuple[float, DeviceRound | None] = (-1.0, None)
    began = time.perf_counter()
    for one in train_devices(DevicePlan(strategy, method, rounds, SAMPLE, seed), crew, loss_of):
        if one.number % EVERY == 0:
            values = judge_with(judge, Parameters(one.state.arrays), valid)
            curve.append({"round": one.number, "loss": one.loss, **values})
            best = max(best, (values["mrr20"], one), key=lambda pair: pair[0])
    assert best[1] is not None
    test = judge_with(judge, Parameters(best[1].state.arrays), found.test)
    seconds = time.perf_counter() - began
    return {"best_round": best[1].number, "test": test, "curve": curve, "bytes": best[1].bytes, "seconds": seconds}


def choose_rates(found: SessionSet, changes: dict[str, Any]) -> dict[str, float]:
    """The rates with the best validation MRR@20 within TUNED_ROUNDS; the same grid for all that have a server."""
    has_server = changes["strategy"] in ("fedadam", "fedyogi", "fedga")
    grid = itertools.product(CLIENT_RATES, SERVER_RATES) if has_server else ((rate, None) for rate in ALONE_RATES)
    tried = []
    for client, server in grid:
        rates = {"learning_rate": client, **({} if server is None else {"server_step.rate": server})}
        curve = run_tuning(found, changes | rates)
        tried.append((max(point["mrr20"] for point in curve), rates))
        print("  tried", rates, round(tried[-1][0], 4), flush=True)
    return max(tried, key=lambda pair: pair[0])[1]


def run_tuning(found: SessionSet, changes: dict[str, Any]) -> list[dict[str, float]]:
    """The validation curve alone: no test example is read."""
    strategy, method = settings(len(found.sessions.items), changes)
    crew, judge, valid = (
        PassingDevices(found.shards, method, CPU),
        SessionTraining(found.shards[0], method, CPU),
        found.valid,
    )
    rounds = train_devices(DevicePlan(strategy, method, TUNED_ROUNDS, SAMPLE, TUNING_SEED), crew, loss_of)
    judged = (one for one in rounds if one.number % (2 * EVERY) == 0)
    return [judge_with(judge, Parameters(one.state.arrays), valid) for one in judged]


def run_silos(found: SessionSet, changes: dict[str, Any], rounds: int, seed: int) -> dict[str, Any]:
    """All silos in every round, each judged on its own examples with its own items as candidates."""
    strategy, method = settings(len(found.sessions.items), changes)
    crew = LastingSilos(found.shards, method, CPU)
    curve, best, began = [], (-1.0, dict[str, Any]()), time.perf_counter()
    for one in train_devices(DevicePlan(strategy, method, rounds, len(found.shards), seed), crew, loss_of):
        trainings = [_with_state(crew, shard, one, seed) for shard in found.shards]
        valid = _over_silos(trainings, lambda shard: shard.valid)
        curve.append({"round": one.number, "loss": one.loss, **valid["examples"]})
        print(strategy, one.number, round(one.loss, 4), round(valid["examples"]["mrr20"], 4), flush=True)
        if valid["examples"]["mrr20"] > best[0]:
            best = (
                valid["examples"]["mrr20"],
                {"best_round": one.number, **_over_silos(trainings, lambda shard: shard.test)},
            )
    return {**best[1], "curve": curve, "bytes": one.bytes, "seconds": time.perf_counter() - began}


def _with_state(crew: LastingSilos, shard: SessionShard, one: DeviceRound, seed: int) -> SessionTraining:
    training = crew.visit(shard.name, Moment(one.number, one.number, seed))
    assert isinstance(training, SessionTraining)
    training.load(Parameters(one.state.arrays))
    return training


def _over_silos(
    trainings: Sequence[SessionTraining], of: Callable[[SessionShard], Prefixes]
) -> dict[str, dict[str, float]]:
    """The mean over examples beside the mean over silos."""
    each = [_judge_silo(training, of(training.shard)) for training in trainings]
    sizes = [len(of(training.shard)) for training in trainings]
    return means(each, sizes)


def means(each: Sequence[dict[str, float]], sizes: Sequence[int]) -> dict[str, dict[str, float]]:
    """Over examples and over clients."""
    names = each[0]
    by_example = {name: float(np.average([one[name] for one in each], weights=sizes)) for name in names}
    return {"examples": by_example, "silos": {name: float(np.mean([one[name] for one in each])) for name in names}}


def _judge_silo(training: SessionTraining, examples: Prefixes) -> dict[str, float]:
    candidates = torch.from_numpy(training.shard.candidates)
    score = lambda e: score_examples(training.model, e, candidates)  # noqa: E731
    return (
        dict(measure_prefixes(score, examples, training.shard.candidates).values)
        if len(examples)
        else dict(measure_ranks(np.zeros(0, dtype=np.int64)).values)
    )


def keep(**row: Any) -> None:
    """One line of results.jsonl."""
    with RESULTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    print({key: value for key, value in row.items() if key != "curve"}, flush=True)


def device_runs(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    found = open_devices(arguments.folder)
    about = {"part": "devices", "data": arguments.folder.name, "clients": len(found.shards), "jd": found.divergence}
    yield {**about, "method": "floors", "test": measure_floors(found.sessions, found.test)}
    rates: dict[str, dict[str, float]] = {}
    chosen = {**METHODS, **(ABLATION if arguments.ablation else {})}
    for name in arguments.methods or chosen:
        changes = chosen[name] | dict(arguments.set)
        rates[name] = choose_rates(found, changes)
        for seed in range(arguments.seeds):
            result = run_devices(found, changes | rates[name], arguments.rounds, seed)
            kept = {"rates": rates[name], "set": dict(arguments.set), "seed": seed, "rounds": arguments.rounds}
            yield {**about, "method": name, **kept, **result}


def silo_runs(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    found = divide(read_sessions(arguments.folder), arguments.cut, arguments.clients)
    about = {
        "part": "silos",
        "data": arguments.folder.name,
        "cut": arguments.cut,
        "clients": arguments.clients,
        "jd": found.divergence,
    }
    sizes = [len(shard.test) for shard in found.shards]
    alone = [measure_silo_floors(shard) for shard in found.shards]
    for floor in alone[0]:
        yield {**about, "method": floor, **means([one[floor] for one in alone], sizes)}
    for name in arguments.strategies:
        changes = {"strategy": name, "batch_size": 100, "learning_rate": 1e-3, **dict(arguments.set)}
        result = run_silos(found, changes, arguments.rounds, arguments.seed)
        yield {
            **about,
            "method": name,
            "set": dict(arguments.set),
            "seed": arguments.seed,
            "rounds": arguments.rounds,
            **result,
        }


def central_runs(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One model on all sessions, as its authors train it: Adam, a tenth of the rate after every third epoch."""
    found = divide(read_sessions(arguments.folder), "random", 1)
    changes = {"strategy": "fedavg", "batch_size": 100, "learning_rate": 1e-3, **dict(arguments.set)}
    _, method = settings(len(found.sessions.items), changes)
    training, candidates = SessionTraining(found.shards[0], method, CPU), found.shards[0].candidates
    every, curve, best = torch.from_numpy(candidates), [], (-1.0, dict[str, Any]())
    score = lambda examples: score_examples(training.model, examples, every)  # noqa: E731
    began = time.perf_counter()
    training.initialise(arguments.seed)
    for epoch in range(1, arguments.rounds + 1):
        training.moment = Moment(epoch, arguments.rounds, arguments.seed)
        if epoch in (4, 7, 10):
            training.scale_rates(0.1)
        training.train()
        valid = dict(measure_prefixes(score, found.valid, candidates).values)
        curve.append({"round": epoch, "loss": training.figures.loss, **valid})
        print(epoch, round(training.figures.loss, 4), round(valid["mrr20"], 4), flush=True)
        if valid["mrr20"] > best[0]:
            test = dict(measure_prefixes(score, found.test, candidates).values)
            best = (valid["mrr20"], {"best_round": epoch, "examples": test})
    about = {"part": "central", "data": arguments.folder.name, "clients": 1, "method": method.model}
    seconds = time.perf_counter() - began
    kept = {"set": dict(arguments.set), "seed": arguments.seed, "rounds": arguments.rounds, "seconds": seconds}
    yield {**about, **kept, **best[1], "curve": curve}


def _setting(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    return name, json.loads(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["devices", "silos", "central"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", nargs="*", help="of devices; by default all")
    parser.add_argument("--ablation", action="store_true")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--cut", default="random")
    parser.add_argument("--strategies", nargs="*", default=["fedavg", "fedga", "local"])
    parser.add_argument("--set", nargs="*", type=_setting, default=[], metavar="NAME=JSON")
    arguments = parser.parse_args()
    for row in {"devices": device_runs, "silos": silo_runs, "central": central_runs}[arguments.part](arguments):
        keep(**row)


if __name__ == "__main__":
    main()
