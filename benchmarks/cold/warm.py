"""Measures lists of small silos without text, with own text, and with all silos' sums.

The command is `python -m benchmarks.cold.warm DATA`. A user's interactions are split at random, 7:1:2. Silos of the
asked size are drawn, and each is measured as it would answer before any training: the closed forms that its validation
items choose. The sums are those of all users of the data, in exact numbers; `--basis` measures text beside a common
basis too. `--apart` keeps of the other users' interactions only those with the half of the items that are least similar
to the silo's, so that their sums describe other items.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from benchmarks.cold.run import FeaturedItems, read_catalogue
from benchmarks.common import render_table
from benchmarks.sparse.federation import sum_silos
from client_service.data.interactions import Shard, build_shard_from_matrices
from client_service.evaluation.metrics import METRICS, PRIMARY, PerUser
from client_service.evaluation.ranking import find_hits
from client_service.models.closed_form.content import ContentSums, add_constant, sum_content
from client_service.models.closed_form.registry import ClosedFormScorers
from client_service.models.closed_form.scorer_part import Scorer
from client_service.sums.registry import SILO_SUMS
from client_service.training.filter_search import best_filter
from client_service.training.fusion_search import fused_top
from shared.method.parameters import Float32
from shared.method.settings import MethodSettings
from shared.method.spectrum import low_spectrum
from simulation.progress import print_progress

NORMAL = 1.96  # half-widths of 95 % intervals in standard errors
NONE, OWN, FEDERATED, BASIS, BOTH = "no text", "own text", "all silos' text", "common basis", "common basis and text"
PAIRS = ((OWN, NONE), (FEDERATED, NONE), (FEDERATED, OWN), (BOTH, BASIS))
TRAIN, VALID = 0.7, 0.8  # up to where a drawn number in [0, 1) makes an interaction one for training, for validation


@dataclass(frozen=True)
class SiloDraw:
    """A data set with split interactions and the users of the drawn silos.

    splits: training, validation and test interactions of all users, (M, N) each. silos: the rows of each silo's users.
    """

    catalogue: FeaturedItems
    splits: tuple[sparse.csr_array, ...]
    silos: list[np.ndarray[Any, np.dtype[np.int64]]]

    def make_shard(self, users: np.ndarray[Any, Any]) -> Shard:
        """Makes the shard of these users with the whole catalogue."""
        ids = (
            [f"{kind}{one:06}" for one in range(size)] for kind, size in zip("ui", self.splits[0].shape, strict=True)
        )
        everybody, items = ids
        parts = [sparse.csr_array(one[users]) for one in self.splits]
        return build_shard_from_matrices(
            "silo", [everybody[user] for user in users], items, parts, np.arange(len(items))
        )


def draw_silos(catalogue: FeaturedItems, size: int, count: int, seed: int) -> SiloDraw:
    """Splits the interactions and draws `count` silos of `size` users."""
    whole, generator = catalogue.interactions, np.random.default_rng([3000, seed])
    order, drawn = generator.permutation(whole.shape[0]), generator.random(whole.nnz)
    coo = whole.tocoo()
    bounds = ((0.0, TRAIN), (TRAIN, VALID), (VALID, 1.0))
    inside = [(drawn >= low) & (drawn < high) for low, high in bounds]
    splits = tuple(
        sparse.csr_array((np.ones(int(one.sum())), (coo.row[one], coo.col[one])), shape=whole.shape) for one in inside
    )
    silos = [np.sort(order[place * size : (place + 1) * size]) for place in range(count)]
    return SiloDraw(catalogue, splits, silos)


def sum_unlike_items(task: SiloDraw, users: np.ndarray[Any, Any], table: Any) -> ContentSums:
    """Sums the other users' interactions with the items least similar to these users' items.

    Only the half of the items with the lowest similarity counts.
    """
    liked = np.asarray(task.splits[0][users].sum(axis=0), dtype=np.float64) @ table[:, :-1]
    others = np.setdiff1d(np.arange(task.splits[0].shape[0]), users)
    likeness = table[:, :-1] @ liked
    far = likeness <= np.median(likeness)
    return sum_content(sparse.csr_array(task.splits[0][others] @ sparse.diags_array(far.astype(float))), table)


def measure_silos(task: SiloDraw, *, basis: bool, apart: bool) -> dict[str, PerUser]:
    """Measures NDCG@20 of each test user by the knowledge of the silo.

    basis: also with a common basis. apart: the others' sums are of items unlike the silo's.
    """
    table = add_constant(task.catalogue.features)
    total, found = sum_content(task.splits[0], table), dict[str, list[PerUser]]()
    summed = None
    if basis:
        items = table.shape[0]
        summed = sum_silos([task.make_shard(np.arange(task.splits[0].shape[0]))], items, "exact", 0)
    for place, users in enumerate(task.silos):
        shard = task.make_shard(users)
        spectrum = low_spectrum(shard.train, MethodSettings().cutoff)
        chosen, seen = best_filter(shard, spectrum).choice, sparse.csr_array(shard.train + shard.valid)
        others = sum_unlike_items(task, users, table) if apart else total.add(sum_content(shard.train, table), -1.0)

        def gains(features: Float32 | None, others: ContentSums | None, common: tuple[Scorer, ...] = ()) -> PerUser:
            made = ClosedFormScorers(shard.train, spectrum, features, others)  # noqa: B023
            top = fused_top(shard, spectrum, chosen, common, closed_forms=made)  # noqa: B023
            return METRICS[PRIMARY].per_user(*find_hits(top, shard.test, seen))  # noqa: B023

        features = task.catalogue.features
        ways = {NONE: gains(None, None), OWN: gains(features, None), FEDERATED: gains(features, others)}
        if summed is not None:
            common = SILO_SUMS["exact"].scorers(summed, shard)
            ways |= {BASIS: gains(None, None, common), BOTH: gains(features, others, common)}
        for name, values in ways.items():
            found.setdefault(name, []).append(values)
        told = ", ".join(f"{name} {values.mean():.4f}" for name, values in ways.items())
        print_progress(f"silo {place + 1} of {len(task.silos)}: {told}")
    return {name: np.concatenate(values) for name, values in found.items()}


def compare_variants(found: dict[str, PerUser]) -> list[dict[str, Any]]:
    """Compares each pair of measured variants.

    Each line has the ratio, and the difference with its 95 % interval over users.
    """
    lines = []
    for one, base in PAIRS:
        if one in found and base in found:
            gain = found[one] - found[base]
            error = NORMAL * float(gain.std(ddof=1)) / np.sqrt(len(gain))
            ratio = float(found[one].mean() / found[base].mean())
            values = {"ratio": ratio, "difference": float(gain.mean()), "interval": error}
            lines.append({"way": one, "over": base} | {name: round(value, 4) for name, value in values.items()})
    return lines


def make_parser() -> argparse.ArgumentParser:
    """Makes the parser of the command's options."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path, help="a data set with titles or attributes of its items")
    parser.add_argument("--users", type=int, default=24, help="of a silo")
    parser.add_argument("--silos", type=int, default=12, help="that are measured of each draw")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--basis", action="store_true", help="measure text beside a common basis too")
    parser.add_argument("--apart", action="store_true", help="the others have only items unlike the silo's")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def main(arguments: list[str] | None = None) -> None:
    """Measures the silos of all draws and prints the figures."""
    given = make_parser().parse_args(arguments)
    catalogue, draws = read_catalogue(given.data), list[dict[str, PerUser]]()
    for seed in range(given.draws):
        draws.append(
            measure_silos(draw_silos(catalogue, given.users, given.silos, seed), basis=given.basis, apart=given.apart)
        )
    found = {name: np.concatenate([draw[name] for draw in draws]) for name in draws[0]}
    document = {
        "data": catalogue.name,
        "users": given.users,
        "ndcg@20": {name: round(float(values.mean()), 4) for name, values in found.items()},
        "draws": {name: [round(float(draw[name].mean()), 4) for draw in draws] for name in found},
        "gains": compare_variants(found),
    }
    if given.json:
        print(json.dumps(document, indent=1))
        return
    print(render_table(("known", "NDCG@20"), [[name, f"{values.mean():.4f}"] for name, values in found.items()]))
    gains = [
        [
            f"{one['way']} over {one['over']}",
            f"x {one['ratio']:.3f}",
            f"{one['difference']:+.4f} ± {one['interval']:.4f}",
        ]
        for one in document["gains"]
    ]
    print(render_table(("gain", "ratio", "difference"), gains))


if __name__ == "__main__":
    main()
