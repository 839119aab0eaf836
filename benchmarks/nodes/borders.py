"""Border sums as benchmark methods: Gram sums over neighbourhoods completed by other silos."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce

import numpy as np
from scipy import sparse

from benchmarks.nodes.cuts import DividedGraph
from benchmarks.nodes.methods import NodeMethod, SiloScores, run_gram
from client_service.data.foreign_edges import BorderSums
from client_service.data.node_graphs import NodeShard
from client_service.models.nodes.spectral_bases import inverse_roots, propagate_nodes
from client_service.sums.node_borders import NODE_BORDERS_SUM, Borders
from client_service.sums.silo_sum import SumRound, Sums
from shared.method.settings import BasisSettings, MethodSettings
from shared.sums.node_borders import NODE_BORDERS, TABLE


def border_method(given: DividedGraph) -> MethodSettings:
    """Returns the settings of border sums over as many hops as the design has."""
    basis = BasisSettings(kind=NODE_BORDERS.name, rounds=given.nodes.hops + 1)
    return given.method.model_copy(update={"basis": basis, "sums": {}})


def sum_borders(silos: Sequence[NodeShard], method: MethodSettings, run: str) -> tuple[Borders, list[bytes]]:
    """Sums the borders of silos as secure aggregation sums them.

    Returns the tables, and each silo's secret of the run.
    """
    secrets = [hashlib.sha256(f"{run} {silo.name}".encode()).digest() for silo in silos]
    sums: dict[int, Sums] = {}

    def open_round(place: int, number: int, known: Mapping[int, Sums]) -> SumRound:
        return SumRound(silos[place], method, 0, len(silos), number, known, secret=secrets[place])

    for number in range(1, method.basis.rounds + 1):
        parts = [NODE_BORDERS_SUM.add(open_round(place, number, sums))[TABLE] for place in range(len(silos))]
        sums[number] = {TABLE: reduce(np.add, parts)}
    known = NODE_BORDERS_SUM.finish(open_round(0, method.basis.rounds, sums))
    assert isinstance(known, Borders)
    return known, secrets


def run_borders(given: DividedGraph) -> SiloScores:
    """Sums borders, then Gram matrices over the neighbourhoods that are whole by them."""
    method = border_method(given)
    known, secrets = sum_borders(given.silos, method, f"benchmark {given.seed}")
    silos = tuple(known.complete(silo, secret) for silo, secret in zip(given.silos, secrets, strict=True))
    found = run_gram(replace(given, silos=silos))
    sent = 4.0 * method.nodes.border_numbers * method.basis.rounds
    return replace(found, bytes_up=found.bytes_up + sent, more={**found.more, "borders": describe_borders(silos)})


def describe_borders(silos: Sequence[NodeShard]) -> dict[str, float]:
    """Computes the shares of nodes and of foreign edge ends that border sums reach."""
    read = sum(int(np.count_nonzero(silo.borders.counts)) for silo in silos if silo.borders is not None)
    ends = sum(int(silo.borders.counts.sum()) for silo in silos if silo.borders is not None)
    foreign = sum(int(silo.foreign.counts.sum()) for silo in silos if silo.foreign is not None)
    nodes = sum(len(silo.node_ids) for silo in silos)
    return {"nodes": read / nodes, "ends": ends / max(foreign, 1)}


def run_all_edges(given: DividedGraph) -> SiloScores:
    """Runs Gram sums where each silo knows the features of all foreign neighbours.

    That is the most that border sums can bring.
    """
    return run_gram(replace(given, silos=complete_exactly(given)))


def complete_exactly(given: DividedGraph) -> tuple[NodeShard, ...]:
    """Completes silos by the sums over all foreign neighbours in the whole graph.

    Features are taken as they are.
    """
    whole, hops = given.whole, given.nodes.hops
    scales = inverse_roots(np.asarray(whole.adjacency.sum(1), np.float64).ravel())[:, None]
    product = whole.features.toarray().astype(np.float64)
    products = [product, *propagate_nodes(replace(whole, foreign=None, borders=None), product, hops)][:hops]
    found = []
    for silo, rows in zip(given.silos, given.rows, strict=True):
        outer = sparse.csc_array(whole.adjacency[rows], dtype=np.float64)
        keep = np.ones(len(whole.node_ids))
        keep[rows] = 0.0
        beyond = sparse.csr_array(outer @ sparse.diags_array(keep))
        beyond.eliminate_zeros()
        sums = np.stack([beyond @ (scales * one) for one in products]).astype(np.float32)
        found.append(replace(silo, borders=BorderSums(np.diff(beyond.indptr).astype(np.int64), sums)))
    return tuple(found)


BORDER_METHODS: Mapping[str, NodeMethod] = {
    one.name: one
    for one in (
        NodeMethod(
            "borders", "border sums, then Gram sums; beside Gram sums of the silos' own edges", run_borders, run_gram
        ),
        NodeMethod(
            "all_edges", "Gram sums where all neighbours are known; beside those of own edges", run_all_edges, run_gram
        ),
    )
}
