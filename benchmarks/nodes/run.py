"""Benchmark of node graphs: silos alone, together and in one place.

python -m benchmarks nodes cora --method gram

Cut and splits are drawn by each seed. Every choice is made by validation nodes; test nodes are read once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.common import render_table
from benchmarks.nodes.borders import BORDER_METHODS
from benchmarks.nodes.cuts import DividedGraph, divide_by_seed, locate_graph_file, take_official
from benchmarks.nodes.figures import TestNodes, compare_scores, describe_scores, mean_and_deviation, select_test_nodes
from benchmarks.nodes.methods import CLOSED_FORMS, NodeMethod, SiloScores, run_alone, run_centralised
from benchmarks.nodes.networks import NETWORK_METHODS
from client_service.evaluation.node_measures import choose_primary
from shared.errors import SettingsError
from shared.words import count_noun
from simulation.experiments.node_floors import count_majority, propagate_labels
from simulation.progress import print_progress

METHODS = {**CLOSED_FORMS, **BORDER_METHODS, **NETWORK_METHODS}
COMPARED = ("fedavg", "fedpub", "gradients")
"""Methods with which each other one that is measured beside them is compared, silo by silo."""
OFFICIAL_SPLITS = 10
SHARES = (0.2, 0.4, 0.4)


@dataclass(frozen=True)
class NodeBenchmark:
    """Options of one benchmark.

    seeds: their number; the first seed is `first`. official: the splits that come with the data, as one silo.
    """

    name: str
    methods: tuple[str, ...] = ("gram",)
    parts: int = 10
    seeds: int = 3
    first: int = 0
    shares: tuple[float, float, float] = SHARES
    cut: str | None = None
    official: bool = False
    changes: Mapping[str, Any] | None = None
    data: str | None = None


def read_shares(text: str) -> tuple[float, float, float]:
    """Parses shares such as `20/40/40`; raises SettingsError for others."""
    try:
        found = tuple(float(part) / 100 for part in text.split("/"))
    except ValueError:
        found = ()
    if len(found) != 3 or min(found) < 0 or abs(sum(found) - 1) > 1e-6:
        raise SettingsError(f"--shares: expected three percentages such as 20/40/40, got {text!r}")
    return found


def find_methods(names: Sequence[str]) -> list[NodeMethod]:
    """Finds methods by name; raises SettingsError for an unknown one."""
    if unknown := [name for name in names if name not in METHODS]:
        raise SettingsError(f"--method: expected some of {', '.join(METHODS)}, got {unknown[0]!r}")
    return [METHODS[name] for name in names]


def run_floor_of(floor: Any) -> Any:
    """Makes a method of a floor of each silo."""
    return lambda given: SiloScores(tuple(floor(silo).astype("float32") for silo in given.silos))


ALWAYS = {
    "alone": run_alone,
    "alone_logistic": partial(run_alone, logistic=True),
    "centralised": run_centralised,
    "label_propagation": run_floor_of(propagate_labels),
    "popular_class": run_floor_of(count_majority),
}


ALONE = ("alone", "alone_logistic")  # with the splits of the data there is one silo


def measure_benchmark(given: NodeBenchmark) -> dict[str, Any]:
    """Measures all draws and returns the document, with a record per method."""
    methods, path = find_methods(given.methods), locate_graph_file(given.name, given.data)
    rows: dict[str, list[tuple[dict[str, Any], TestNodes, SiloScores, float]]] = {}
    alones: dict[str, list[TestNodes]] = {}
    classes, draws = 0, list[DividedGraph]()
    for seed in range(OFFICIAL_SPLITS) if given.official else range(given.first, given.first + given.seeds):
        divided = (
            take_official(path, seed, given.changes)
            if given.official
            else divide_by_seed(path, given.parts, seed, shares=given.shares, cut=given.cut, changes=given.changes)
        )
        classes = len(divided.whole.classes)
        draws.append(divided)
        always = {name: run for name, run in ALWAYS.items() if not given.official or name not in ALONE}
        runs = {**always, **{one.name: one.together for one in methods if not given.official}}
        for name, run in runs.items():
            begun = time.process_time()
            found = run(divided)
            line = describe_scores(divided, found)
            rows.setdefault(name, []).append(
                (line, select_test_nodes(divided, found), found, time.process_time() - begun)
            )
            print_progress(f"{divided.name}, seed {seed}, {name}: {line['mean']:.4f}")
        for one in methods:
            if one.alone is not None and not given.official:
                alones.setdefault(one.name, []).append(select_test_nodes(divided, one.alone(divided)))
    return {
        "data": draws[0].name,
        "measure": choose_primary(classes),
        "parts": len(draws[0].silos),
        "seeds": [one.seed for one in draws],
        "shares": "official" if given.official else list(given.shares),
        "cut": draws[0].cut,
        "kept_edges": mean_and_deviation([one.kept for one in draws]),
        "settings": {
            **draws[0].nodes.model_dump(include={"hops", "directions", "random_features"}),
            "least_nodes": draws[0].method.basis.least_pairs,
            **(given.changes or {}),
        },
        **{name: _describe_row(rows[name]) for name in ALWAYS if name in rows},
        "methods": {one.name: _describe_method(one, rows, alones) for one in methods if not given.official},
    }


def _describe_row(lines: Sequence[tuple[dict[str, Any], TestNodes, SiloScores, float]]) -> dict[str, Any]:
    described = [line for line, _, _, _ in lines]
    return {
        **mean_and_deviation([line["mean"] for line in described]),
        **{
            name: mean_and_deviation([line[name] for line in described])
            for name in ("by_nodes", "accuracy", "auc", "calibration_error")
        },
        "cpu_seconds": mean_and_deviation([seconds for _, _, _, seconds in lines])["mean"],
        "draws": described,
    }


def _describe_method(one: NodeMethod, rows: Mapping[str, Any], alones: Mapping[str, list[TestNodes]]) -> dict[str, Any]:
    own = [tested for _, tested, _, _ in rows[one.name]]
    alone = alones.get(one.name, [tested for _, tested, _, _ in rows["alone"]])
    found: dict[str, Any] = {
        "title": one.title,
        "together": _describe_row(rows[one.name]),
        "bytes_up": mean_and_deviation([scores.bytes_up for _, _, scores, _ in rows[one.name]]),
        "over_alone": compare_scores(list(zip(own, alone, strict=True))),
        "over_alone_logistic": compare_scores(
            list(zip(own, [tested for _, tested, _, _ in rows["alone_logistic"]], strict=True))
        ),
    }
    others = [name for name in COMPARED if name in rows and name != one.name]
    found |= {
        f"over_{name}": compare_scores(list(zip(own, [tested for _, tested, _, _ in rows[name]], strict=True)))
        for name in others
    }
    more = [scores.more for _, _, scores, _ in rows[one.name] if scores.more.keys() - {"choices"}]
    return {**found, **({"more": more} if more else {})}


def render_benchmark(document: Mapping[str, Any]) -> str:
    """Renders the figures as a table."""
    lines = [
        [
            name.replace("_", " "),
            _format_spread(document[name]),
            _format_spread(document[name]["by_nodes"]),
            "",
            "",
            "",
            "",
        ]
        for name in ("popular_class", "label_propagation", *ALONE, "centralised")
        if name in document
    ]
    for name, one in document["methods"].items():
        over, regressed = one["over_alone"], one["over_alone_logistic"]
        lines.append(
            [
                name,
                _format_spread(one["together"]),
                _format_spread(one["together"]["by_nodes"]),
                _format_gain(over),
                _format_gain(regressed),
                f"{over['harmed']} of {over['silos']}, worst {over['worst']:+.3f}",
                f"{one['bytes_up']['mean'] / 1000:,.1f} kB",
            ]
        )
    measure = f"{document['measure']}, mean over silos"
    head = ("", measure, "over nodes", "over alone", "over alone, logistic", "silos below alone", "up a silo")
    silos = count_noun(document["parts"], "silo")
    kept = f"{document['kept_edges']['mean']:.1%} of edges kept"
    about = (
        f"{document['data']}: {silos}, cut: {document['cut']}, {kept}, splits {document['shares']},"
        f" seeds {document['seeds']}"
    )
    return "\n".join([about, "", render_table(head, lines)])


def _format_gain(one: Mapping[str, Any]) -> str:
    low, high = one["interval"]
    return f"{one['gain']:+.4f} ({low:+.4f} to {high:+.4f})"


def _format_spread(one: Mapping[str, float]) -> str:
    return f"{one['mean']:.4f} ± {one['deviation']:.4f}"


def run_nodes(given: NodeBenchmark, *, as_json: bool) -> None:
    """Measures and prints."""
    document = measure_benchmark(given)
    print(json.dumps(document, indent=1) if as_json else render_benchmark(document))
