"""Comparison of ways to split a silo's labels, on nodes whose labels no silo has.

python -m benchmarks.node_splits [--silos 3] [--accounts 500] [--labelled 0.35] [--seeds 10] [--first-seed 100]

Each seed generates platforms with planted rings, hides the labels of most accounts, and splits the others in several
ways. A silo answers alone, by all silos' Gram sums whether its validation nodes prefer them or not, or by the choice
of these; "refitted" is the same model, fitted again on all labelled nodes of the silo. A silo is harmed where the
choice is .01 below its result alone with the same split.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import render_table
from client_service.data.node_graphs import TRAIN, UNKNOWN, UNLABELLED, VALID, Int64, NodeShard
from client_service.models.nodes.closed_form import build_design_spec, fit_nodes, make_design, refit_nodes
from client_service.models.nodes.measures import area_under_roc
from client_service.sums.node_gram import count_nodes, own_gram
from shared.method.node_settings import NodeSettings
from shared.method.settings import MethodSettings
from simulation.graphs.cut import draw_splits, draw_stratified_splits, select_nodes
from simulation.graphs.generator import GraphSizes, generate_graph

WAYS: dict[str, Callable[[Int64, list[int]], NDArray[np.int8]]] = {
    "20:40:40": lambda labels, seed: draw_splits(labels, seed, (0.2, 0.4, 0.4)),
    "60:20:20": lambda labels, seed: draw_splits(labels, seed, (0.6, 0.2, 0.2)),
    "60:20:20 of each class": lambda labels, seed: draw_stratified_splits(labels, seed, (0.6, 0.2, 0.2)),
    "80:20:0 of each class": lambda labels, seed: draw_stratified_splits(labels, seed, (0.8, 0.2, 0.0)),
}
HARM = 0.01
ANSWERS = ("alone", "alone, refitted", "together", "choice", "choice, refitted")


def make_silos(seed: int, given: argparse.Namespace) -> list[NodeShard]:
    """Creates each platform's graph with all labels, and marks known ones by splits."""
    whole, cut = generate_graph(seed, given.silos, GraphSizes(accounts=given.accounts, labelled=1.0))
    silos = [select_nodes(whole, f"bank-{place + 1}", nodes) for place, nodes in enumerate(cut.nodes)]
    rng = np.random.default_rng([seed, 1])
    shown = [rng.random(len(one.labels)) < given.labelled for one in silos]
    return [
        one.with_splits(np.where(own, TRAIN, UNLABELLED).astype(np.int8)) for one, own in zip(silos, shown, strict=True)
    ]


def measure_split(silos: list[NodeShard], way: str, seed: int) -> dict[str, list[float]]:
    """Measures the area under the ROC curve on unlabelled nodes, for each answer."""
    hidden = [one.splits == UNLABELLED for one in silos]
    known = [replace(one, labels=np.where(away, UNKNOWN, one.labels)) for one, away in zip(silos, hidden, strict=True)]
    known = [one.with_splits(WAYS[way](one.labels, [seed, place])) for place, one in enumerate(known)]
    nodes = NodeSettings(features=silos[0].features.shape[1], classes=2)
    method, spec = MethodSettings(nodes=nodes), build_design_spec(nodes)
    pooled = reduce(lambda one, other: one + other, (own_gram(count_nodes(one, method), nodes, None) for one in known))
    found: dict[str, list[float]] = {answer: [] for answer in ANSWERS}
    for one, away, truth in zip(known, hidden, silos, strict=True):
        design = make_design(one, spec)
        alone, choice = fit_nodes(one, design, spec), fit_nodes(one, design, spec, pooled)
        blind = one.with_splits(
            np.where(one.splits == VALID, UNLABELLED, one.splits).astype(np.int8)
        )  # without validation nodes no silo can prefer to be alone
        models = {
            "alone": alone,
            "alone, refitted": refit_nodes(alone, one, design),
            "together": fit_nodes(blind, design, spec, pooled),
            "choice": choice,
            "choice, refitted": refit_nodes(choice, one, design, pooled),
        }
        for answer, model in models.items():
            found[answer].append(area_under_roc(model.predict(design)[away], truth.labels[away]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--silos", type=int, default=3)
    parser.add_argument("--accounts", type=int, default=500)
    parser.add_argument("--labelled", type=float, default=0.35)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=100)
    given = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = {way: {answer: [] for answer in ANSWERS} for way in WAYS}
    for seed in range(given.first_seed, given.first_seed + given.seeds):
        silos = make_silos(seed, given)
        for way in WAYS:
            for answer, values in measure_split(silos, way, seed).items():
                found[way][answer] += values
    rows = []
    for way, answers in found.items():
        areas = {answer: np.array(one) for answer, one in answers.items()}
        judged, refitted = areas["choice"] - areas["alone"], areas["choice, refitted"] - areas["alone, refitted"]
        means = (f"{one.mean():.4f}" for one in areas.values())
        rows.append((way, *means, *(f"{(g < -HARM).sum()} of {len(g)}, {g.min():+.3f}" for g in (judged, refitted))))
    print(
        f"{given.silos} silos of {given.accounts} nodes, {given.labelled:.0%} labelled, seeds {given.first_seed} to"
        f" {given.first_seed + given.seeds - 1}: AUC on nodes without labels, mean over silos\n"
    )
    print(render_table(("split", *ANSWERS, "harmed, worst", "refitted: harmed, worst"), rows))


if __name__ == "__main__":
    main()
