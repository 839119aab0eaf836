"""Measures FedUTR's rows where a client is a user, as in the papers.

python -m benchmarks.fedutr.devices ../shared/data/ml-1m-text --records 8 [--rows fedutr ...] [--rounds 18]
python -m benchmarks.fedutr.devices ../shared/data/ml-100k --rows pfedrec+known --rounds 100 --every 5 \
    --chosen-by hr10_99 --set '{"item_rate": 13456, "user_rate": 0.1}'    the rates of PFedRec's public code

For each row the validation items of a federation of fewer users (--searched) choose among the same candidates, and the
number of rounds, on the split of the first seed. The test items of each seed are ranked once. Lines go to
device_results.jsonl, and `python -m benchmarks.fedutr.tables` makes tables of them. With --set there is no search: each
run is judged by its own validation items at every few rounds, and the test items by the devices of the best round.
"""

from __future__ import annotations

import argparse
import base64
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.fedutr.methods import make_fusion_scorer, score_by_ease, score_by_neighbours, score_by_popularity
from benchmarks.fedutr.sets import AT, LeaveOneOut, measure_ranks, rank_targets, read_leave_one_out
from benchmarks.fedutr.user_devices import DeviceSettings, UserDevices
from client_service.training.start_choice import text_rows
from shared.method.settings import method_settings
from shared.method.tensors import TABLE_DEVIATION

RESULTS = Path(__file__).with_name("device_results.jsonl")
TUNING_SEED = 100  # of the search
AVOID_HELD_OUT = {"avoided": "all"}
PFEDREC: dict[str, Any] = {"strategy": "pfedrec", "tuned": True}
# Paper: the mean over all devices; here: over those that moved a row, because at rates at which personal rows do not
# saturate at once the common table would hardly move: HR@10 .01, below popularity.
FEDRAP: dict[str, Any] = {"strategy": "fedrap", "redraw": False, "distance": 0.1, "strength": 1e-3, "growth": True}
FEDRAP |= {"table_mean": "moved"}
FEDUTR: dict[str, Any] = {"strategy": "fedutr", "strength": 0.1, "text": True}
ROWS: dict[str, dict[str, Any]] = {
    "fedmf": {},
    "fedmf+text": {"text": True},
    "pfedrec": PFEDREC,
    "pfedrec+text": PFEDREC | {"text": True},
    "fedrap": FEDRAP,
    "fedrap+text": FEDRAP | {"text": True},
    "fedutr": FEDUTR,
    "fedutr_sar": FEDUTR | {"sparsity_aware": True},
    "fedutr-urm": FEDUTR | {"text": False},
    "fedutr-cifm": FEDUTR | {"fusion": False},
    "fedutr-lam": FEDUTR | {"adaptation": False},
    "fedutr-l1": FEDUTR | {"strength": 0.0},
    "fedutr-layernorm": FEDUTR | {"normalise": False},
    "pfedrec+known": PFEDREC | AVOID_HELD_OUT,
    "fedrap+known": FEDRAP | AVOID_HELD_OUT,
}
"""Settings of the devices by row. "known": no validation or test item is a negative, as in the public code of PFedRec
and FedRAP."""
NOISE: dict[str, tuple[str, dict[str, Any]]] = {
    "fedutr+noise.1": ("fedutr", {"laplace": 0.1}),
    "fedutr+noise.5": ("fedutr", {"laplace": 0.5}),
    "fedutr+dp": ("fedutr", {}),
}
"""By noised row, the row whose choice it takes, and its noise."""
CANDIDATES: tuple[dict[str, float], ...] = (
    {"deviation": 0.1, "item_rate": 1e3, "user_rate": 0.3},
    {"deviation": 0.1, "item_rate": 1e4, "user_rate": 0.3},
    {"deviation": 1.0, "item_rate": 1e4, "user_rate": 0.3},
    {"deviation": 1.0, "item_rate": 3e4, "user_rate": 0.3},
)
MOVED_CANDIDATES: tuple[dict[str, float], ...] = (
    {"deviation": 0.1, "item_rate": 30.0, "user_rate": 0.3},
    {"deviation": 0.1, "item_rate": 300.0, "user_rate": 0.3},
    {"deviation": 1.0, "item_rate": 100.0, "user_rate": 0.3},
    {"deviation": 0.1, "item_rate": 1000.0, "user_rate": 0.3},
)
"""Candidates for FedRAP, as many as for the others; its mean is not divided by all devices, so that rates are lower."""
Row = dict[str, Any]


class DeviceExperiment:
    """A data set with leave-one-out splits and all that its devices begin with."""

    def __init__(self, folder: Path, records: int, seed: int, width: int, users: int = 0) -> None:
        self.found = read_leave_one_out(folder, users=users, records=records, silos=1, seed=seed)
        whole = self.found.whole
        self.known = {"train": whole.train.toarray() > 0, "all": whole.known_pairs.toarray() > 0}
        method = method_settings(catalogue=len(whole.item_ids), width=width, item_start="text")
        self.text = text_rows(whole, method, "mf") if whole.titles or whole.features is not None else None

    def begin(self, changes: Mapping[str, Any], seed: int) -> UserDevices:
        """Begins the devices of a row. The text's rows have the deviation that others draw."""
        settings = DeviceSettings(**{name: value for name, value in changes.items() if name != "text"})
        start = None
        if changes.get("text"):
            assert self.text is not None
            start = (self.text * (settings.deviation / TABLE_DEVIATION)).astype(np.float32)
        return UserDevices(self.found.whole.train, self.known[settings.avoided], settings, seed, start)


def judge_devices(found: LeaveOneOut, devices: UserDevices, split: str) -> dict[str, NDArray[np.float64]]:
    """Ranks the items of `split` by the current state of the devices."""
    return rank_targets(found, devices.score_items(), split)


def choose_settings(
    experiment: DeviceExperiment, name: str, rounds: int, every: int, chosen_by: str
) -> tuple[Row, Row]:
    """Finds the candidate and round with the best validation figure, and logs all."""
    found = experiment.found
    tried: list[tuple[float, int, int]] = []
    candidates = MOVED_CANDIDATES if ROWS[name].get("table_mean") == "moved" else CANDIDATES
    for place, candidate in enumerate(candidates):
        devices = experiment.begin(ROWS[name] | candidate, TUNING_SEED)
        for number in range(1, rounds + 1):
            devices.run_round()
            if number % every == 0:
                figures = measure_all(judge_devices(found, devices, "valid"))
                tried.append((figures[chosen_by], place, number))
    value, place, number = max(tried)
    log = {"tried": [[round(one, 4), *rest] for one, *rest in tried], "valid": value}
    return candidates[place] | {"rounds": number}, log


def measure_all(ranks: Mapping[str, NDArray[np.float64]]) -> dict[str, float]:
    """Computes HR@10 and NDCG@10 in both protocols."""
    return {name: value for side, rank in ranks.items() for name, value in measure_ranks(rank, side).items()}


def pack_hits(ranks: Mapping[str, NDArray[np.float64]]) -> dict[str, str]:
    """Packs for each protocol which users have their item among ten, as base64 of bits."""
    packed = {side: np.packbits(rank <= AT).tobytes() for side, rank in ranks.items()}
    return {side: base64.b64encode(bits).decode() for side, bits in packed.items()}


def run_floor(experiment: DeviceExperiment, name: str) -> dict[str, NDArray[np.float64]]:
    """Ranks the test items by a baseline without rounds."""
    found = experiment.found
    makers = {
        "popularity": score_by_popularity,
        "ease": score_by_ease,
        "neighbours": score_by_neighbours,
        "fusion": make_fusion_scorer([found.whole]),
    }
    return rank_targets(found, makers[name](found), "test")


FLOORS = ("popularity", "neighbours", "ease", "fusion")


def run_row(experiment: DeviceExperiment, changes: Row, seed: int) -> dict[str, NDArray[np.float64]]:
    """Trains a row's devices for the chosen rounds and ranks the test items once."""
    devices = experiment.begin(changes, seed)
    for _ in range(changes["rounds"]):
        devices.run_round()
    return judge_devices(experiment.found, devices, "test")


def follow_row(
    experiment: DeviceExperiment, changes: Row, seed: int, every: int, chosen_by: str
) -> tuple[int, dict[str, NDArray[np.float64]]]:
    """Trains a row's devices and ranks test items at the best validation round."""
    devices = experiment.begin(changes, seed)
    best: tuple[float, int, dict[str, NDArray[np.float64]]] = (-1.0, 0, {})
    for number in range(1, changes["rounds"] + 1):
        devices.run_round()
        if number % every == 0:
            scores = devices.score_items()
            value = measure_all(rank_targets(experiment.found, scores, "valid"))[chosen_by]
            if value > best[0]:
                best = (value, number, rank_targets(experiment.found, scores, "test"))
    return best[1], best[2]


def find_noise(experiment: DeviceExperiment, changes: Row, epsilon: float) -> Row:
    """Finds the clipping norm and the noise of a run with differential privacy of users.

    The norm is the median of a round without noise. delta = 1e-5, all users in all rounds.
    """
    from dp_accounting import get_epsilon_gaussian

    devices = experiment.begin(changes | {"clip": 1e9}, TUNING_SEED)
    devices.run_round()
    low, high = 0.01, 1e4
    for _ in range(60):
        middle = (low * high) ** 0.5
        private = get_epsilon_gaussian(middle / changes["rounds"] ** 0.5, 1e-5) <= epsilon
        low, high = (low, middle) if private else (middle, high)
    return {"clip": float(devices.norms.median()), "noise": high}


def run_all(arguments: argparse.Namespace) -> None:
    """Runs the rows and appends a line to the results for each row and seed."""
    experiments: dict[tuple[int, int], DeviceExperiment] = {}

    def take(seed: int, users: int = 0) -> DeviceExperiment:
        if (seed, users) not in experiments:
            experiments[seed, users] = DeviceExperiment(
                arguments.folder, arguments.records, seed, arguments.width, users
            )
        return experiments[seed, users]

    about = {"data": arguments.folder.name, "users": 0, "records": arguments.records, "silos": 0}
    kept = read_lines(arguments.out, about)

    def write(row: Row) -> None:
        with arguments.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(about | row) + "\n")
        print({name: value for name, value in row.items() if name != "hits"}, flush=True)

    for name in arguments.rows:
        base, extra = NOISE.get(name, (name, {}))
        chosen: Row | None = kept.get((base, -1))
        if base in ROWS and chosen is None and not arguments.set:
            began = time.process_time()
            rates, log = choose_settings(
                take(arguments.seeds[0], arguments.searched),
                base,
                arguments.rounds,
                arguments.every,
                arguments.chosen_by,
            )
            chosen = {"row": base, "seed": -1, "set": rates, **log, "cpu": round(time.process_time() - began, 1)}
            kept[base, -1] = chosen
            write(chosen)
        for seed in arguments.seeds:
            if (name, seed) in kept:
                continue
            experiment, began = take(seed), time.process_time()
            changes: Row = {}
            if base in ROWS:
                rates = arguments.set | {"rounds": arguments.rounds} if chosen is None else chosen["set"]
                changes = ROWS[base] | rates | extra | {"width": arguments.width}
                if name == "fedutr+dp":
                    changes |= find_noise(experiment, changes, arguments.epsilon) | {"epsilon": arguments.epsilon}
            private = changes.pop("epsilon", None)
            best = changes.get("rounds", 0)
            if not changes:
                ranks = run_floor(experiment, name)
            elif arguments.set:
                best, ranks = follow_row(experiment, changes, seed, arguments.every, arguments.chosen_by)
            else:
                ranks = run_row(experiment, changes, seed)
            spent = {"best": best, "cpu": round(time.process_time() - began, 1)} | (
                {"epsilon": private} if private else {}
            )
            write(
                {
                    "row": name,
                    "seed": seed,
                    "set": changes,
                    **spent,
                    "test": measure_all(ranks),
                    "judged": len(ranks["all"]),
                    "hits": pack_hits(ranks),
                }
            )


def read_lines(path: Path, about: Row) -> dict[tuple[str, int], Row]:
    """Reads a data set's lines of an earlier run by row and seed.

    The choice of settings has seed -1.
    """
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {(one["row"], one["seed"]): one for one in lines if about.items() <= one.items()}


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--records", type=int, default=0, help="of a user, the last ones; 0: all")
    names = [*ROWS, *NOISE, *FLOORS]
    parser.add_argument("--rows", nargs="*", default=names, choices=names, metavar="ROW")
    parser.add_argument("--searched", type=int, default=2000, help="users of the federation of the search; 0: all")
    parser.add_argument("--rounds", type=int, default=12, help="the most that validation may choose")
    parser.add_argument("--every", type=int, default=4, help="rounds between two validations")
    parser.add_argument("--chosen-by", default="ndcg10_all", help="figure of the validation items")
    parser.add_argument(
        "--set", type=json.loads, default={}, metavar="JSON", help="fields of DeviceSettings; no search"
    )
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--epsilon", type=float, default=8.0, help="of the row fedutr+dp")
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args(words)


def main() -> None:
    torch.set_num_threads(1)
    run_all(parse_arguments())


if __name__ == "__main__":
    main()
