"""Measures whether text at the start of item tables improves rankings, and whether FedUTR does.

The protocol is leave-one-out over all items that a user has not interacted with.

python -m benchmarks.fedutr.run FOLDER [--users 2000] [--records 8] [--silos 4] [--rows fedutr fedmf ...] [--rounds 20]
python -m benchmarks.fedutr.run ../shared/data/ml-100k --silos 0 --rows pfedrec fedrap    one user a client

Rates are chosen by validation, with a seed of their own; the best round of a run by validation NDCG@10 over all
items, and the test items are read with the model of that round. Each run appends a line to results.jsonl;
`python -m benchmarks.fedutr.tables` makes the tables.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.fedutr.methods import (
    ROWS,
    RoundFigures,
    make_fusion_scorer,
    score_by_ease,
    score_by_popularity,
    train_rounds,
)
from benchmarks.fedutr.sets import LeaveOneOut, judge_scores, read_leave_one_out

RESULTS = Path(__file__).with_name("results.jsonl")
CHOSEN_BY, TUNING_SEED = "ndcg10_all", 100
RATES: tuple[dict[str, float], ...] = tuple({"learning_rate": rate} for rate in (0.003, 0.01, 0.03, 0.1))
FLOORS = ("popularity", "ease", "fusion", "fusion pooled")
Row = dict[str, Any]


def run_floors(found: LeaveOneOut) -> Iterator[tuple[str, dict[str, float]]]:
    """Measures the baselines that need no training rounds."""
    makers = {
        "popularity": score_by_popularity,
        "ease": score_by_ease,
        "fusion": make_fusion_scorer(found.make_shards()),
    }
    for name, make in (makers | {"fusion pooled": make_fusion_scorer([found.whole])}).items():
        yield name, judge_scores(found, make(found), "test")


def find_best_round(judged: Iterator[RoundFigures]) -> tuple[RoundFigures, list[float]]:
    """Finds the round with the best validation figure.

    Also returns the validation figure of each round.
    """
    rounds = list(judged)
    return max(rounds, key=lambda one: one.valid[CHOSEN_BY]), [one.valid[CHOSEN_BY] for one in rounds]


def choose_rates(found: LeaveOneOut, name: str, base: dict[str, Any], rounds: int, sample: int) -> dict[str, float]:
    """Finds the learning rates with the best validation figure in any round."""
    strategy, changes = ROWS[name]

    def value(rates: dict[str, float]) -> float:
        judged = train_rounds(found, strategy, base | changes | rates, rounds, TUNING_SEED, sample)
        return find_best_round(judged)[0].valid[CHOSEN_BY]

    return max(RATES, key=value)


def run_rows(arguments: argparse.Namespace) -> Iterator[Row]:
    """Measures each baseline and row with each seed."""
    chosen: dict[str, dict[str, float]] = {}
    base = {"width": arguments.width, "batch_size": arguments.batch, "negatives": arguments.negatives}
    base |= dict(arguments.set)
    for seed in arguments.seeds:
        sizes = {"users": arguments.users, "records": arguments.records, "silos": arguments.silos}
        found = read_leave_one_out(arguments.folder, **sizes, seed=seed)
        about = {"data": found.name, **sizes, "seed": seed}
        if arguments.floors:
            for name, test in run_floors(found):
                yield {**about, "row": name, "test": test}
        for name in arguments.rows:
            if name not in chosen and arguments.rate:
                chosen[name] = {"learning_rate": arguments.rate}
            elif name not in chosen:
                chosen[name] = choose_rates(found, name, base, arguments.rounds, arguments.sample)
            strategy, changes = ROWS[name]
            began = time.process_time()
            judged = train_rounds(
                found, strategy, base | changes | chosen[name], arguments.rounds, seed, arguments.sample
            )
            best, curve = find_best_round(judged)
            spent = {"rounds": arguments.rounds, "best": best.number, "cpu": round(time.process_time() - began, 1)}
            yield {**about, "row": name, "set": base, **chosen[name], **spent, "test": best.test, "curve": curve}


def parse_setting(text: str) -> tuple[str, Any]:
    """Parses a setting of the form NAME=JSON."""
    name, _, value = text.partition("=")
    return name, json.loads(value)


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--users", type=int, default=0, help="drawn by the seed; 0: all")
    parser.add_argument("--records", type=int, default=0, help="of a user, the last ones; 0: all")
    parser.add_argument("--silos", type=int, default=4, help="0: one for each user")
    parser.add_argument("--sample", type=int, default=0, help="clients of a round; 0: all")
    parser.add_argument("--rows", nargs="*", default=list(ROWS), choices=list(ROWS), metavar="ROW")
    parser.add_argument("--floors", action="store_true", help=f"also {', '.join(FLOORS)}")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--rate", type=float, default=0.0, help="0: validation chooses")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--negatives", type=int, default=64)
    parser.add_argument("--set", nargs="*", type=parse_setting, default=[], metavar="NAME=JSON")
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args(words)


def main() -> None:
    arguments = parse_arguments()
    for row in run_rows(arguments):
        with arguments.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print({key: value for key, value in row.items() if key != "curve"}, flush=True)


if __name__ == "__main__":
    main()
