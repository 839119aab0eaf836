"""Structure of a data set under each way of dividing it among clients (Table 7).

Nothing is trained.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from scipy import linalg, sparse
from threadpoolctl import threadpool_limits

from benchmarks.common import locate_data, paper_figures, render_table
from benchmarks.harness.claims import FAILS, HOLDS
from client_service.data.interaction_files import load_shard
from shared.errors import DataError
from shared.method.graph import Float64, degrees, normalise
from simulation.partitioning.methods import METHODS
from simulation.partitioning.sources import Cut, cut_shards


def structure_figures(graph: sparse.csr_array, cutoff: int) -> dict[str, float]:
    """Computes the figures of one graph with n nodes and E edges.

    size: n; degree: 2 E / n; degree_variance: over nodes; density: 2 E / (n (n - 1)); entropy: see
    `spectral_entropy`; energy: the share of the squared singular values of R_hat that the first `cutoff` of them
    hold. Degree and density are those that give the paper's figures for stars, 1.97 and .032.
    """
    connected = _drop_isolated_nodes(graph)
    nodes, edges = sum(connected.shape), connected.nnz
    singular = _singular_values(connected)
    return {
        "users": float(connected.shape[0]),
        "items": float(connected.shape[1]),
        "size": float(nodes),
        "degree": 2.0 * edges / nodes,
        "degree_variance": float(np.concatenate(degrees(connected)).var()),
        "density": 2.0 * edges / (nodes * (nodes - 1)),
        "entropy": spectral_entropy(laplacian_eigenvalues(singular, connected.shape)),
        "energy": float(np.square(singular[:cutoff]).sum() / np.square(singular).sum()),
    }


def laplacian_eigenvalues(singular: Float64, shape: tuple[int, int]) -> Float64:
    """Returns all M + N eigenvalues of L = I - D^-1/2 A D^-1/2.

    They are 1 - s and 1 + s for each singular value s, and 1 for each of the |M - N| others.
    """
    others = np.ones(abs(shape[0] - shape[1]))
    return np.sort(np.clip(np.concatenate([1.0 - singular, 1.0 + singular, others]), 0.0, 2.0))


def spectral_entropy(eigenvalues: Float64) -> float:
    """Computes the Shannon entropy, in bits, of the eigenvalues over their sum.

    It is log2 n where all are equal.
    """
    shares = eigenvalues[eigenvalues > 0] / eigenvalues.sum()
    return float(-(shares * np.log2(shares)).sum())


def _drop_isolated_nodes(graph: sparse.csr_array) -> sparse.csr_array:
    by_user, by_item = degrees(graph)
    return sparse.csr_array(graph[np.flatnonzero(by_user)][:, np.flatnonzero(by_item)])


def _singular_values(graph: sparse.csr_array) -> Float64:
    """Computes all singular values of R_hat, descending."""
    gram = normalise(graph)
    gram = gram @ gram.T if graph.shape[0] <= graph.shape[1] else gram.T @ gram  # half the work of a decomposition
    return np.sqrt(np.clip(linalg.eigvalsh(gram.toarray())[::-1], 0.0, None))


Row = dict[str, Any]
MEANS = ("size", "degree", "degree_variance", "density", "entropy", "energy")
SHOWN = {
    "size": ("size", ".1f"),
    "size_variance": ("size variance", ".0f"),
    "degree": ("degree", ".2f"),
    "degree_variance": ("degree variance", ".1f"),
    "density": ("density", ".4f"),
    "entropy": ("spectral entropy", ".2f"),
    "energy": ("low-frequency energy", ".3f"),
}
PAPER_ROWS = {
    "ego": "Ego-graph",
    "random": "Random-Const.",
    "interconnected": "Interconnected-Const.",
    "spectral": "Spectral-Clust.",
}
WHOLE = ("users", "random", "interconnected")  # items are not divided, so that no edge is dropped


def run(config: dict[str, Any], *, quick: bool, data: Path | None, out: Path) -> list[Row]:
    """Measures one row per method and partition, or the reason why it cannot divide."""
    del quick
    place = locate_data(config["data"], data)
    with threadpool_limits(1), tempfile.TemporaryDirectory(dir=out) as folder:
        return [
            _partition_row(config, place, method, number, Path(folder))
            for method in METHODS
            for number in config["partitions"]
        ]


def _partition_row(config: dict[str, Any], place: str, method: str, number: int, folder: Path) -> Row:
    head = {"data": config["data"], "method": method, "partition": number, "clients": config["clients"]}
    try:
        shards = cut_shards(place, Cut(config["clients"], method, number), folder / f"{method}-{number}")
    except DataError as error:
        return {**head, "problem": str(error)}
    clients = [structure_figures(load_shard(path).train, config["cutoff"]) for path in shards.paths]
    means = {name: float(np.mean([client[name] for client in clients])) for name in MEANS}
    variance = float(np.var([client["size"] for client in clients]))
    return {**head, "edges_kept": shards.edges_kept, "size_variance": variance, **means, "by_client": clients}


def render(rows: list[Row]) -> str:
    """Renders every method, mean ± standard deviation over partitions, with the paper's."""
    known = {name: [row for row in rows if row["method"] == name and "problem" not in row] for name in METHODS}
    paper = paper_figures("table7", rows[0]["data"])
    lines = []
    for method, own in known.items():
        if own:
            lines.append([method, f"{np.mean([row['edges_kept'] for row in own]):.3f}", *_figure_cells(own)])
        if theirs := paper.get(PAPER_ROWS.get(method, "")):
            lines.append([f"paper: {PAPER_ROWS[method]}", "-", *(str(theirs[name]) for name in SHOWN)])
    head = ["method", "edges kept", *(title for title, _ in SHOWN.values())]
    return "\n\n".join(
        [render_table(head, lines), _sizes_table(known), *(f"- {line}" for line in _problem_lines(rows))]
    )


def _figure_cells(rows: list[Row]) -> list[str]:
    """Formats means over partitions, with deviations for several partitions."""
    cells = []
    for name, (_, form) in SHOWN.items():
        values = [row[name] for row in rows]
        spread = f" ± {np.std(values, ddof=1):{form}}" if len(values) > 1 else ""
        cells.append(f"{np.mean(values):{form}}{spread}")
    return cells


def _sizes_table(known: dict[str, list[Row]]) -> str:
    """Renders users and items of each client in the first partition."""
    lines = [
        [method, ", ".join(f"{client['users']:.0f} x {client['items']:.0f}" for client in rows[0]["by_client"])]
        for method, rows in known.items()
        if rows
    ]
    return render_table(["method", "users x items of each client"], lines)


def _problem_lines(rows: list[Row]) -> list[str]:
    bad = [row for row in rows if "problem" in row]
    return [f"{row['method']}, partition {row['partition']}: {row['problem']}" for row in bad]


def claims(rows: list[Row]) -> list[tuple[str, str, str, str]]:
    """Judges whether spectral clustering has the highest degree variance of the paper's methods."""
    good = [row for row in rows if "problem" not in row]
    names = [name for name in PAPER_ROWS if any(row["method"] == name for row in good)]
    means = {n: float(np.mean([row["degree_variance"] for row in good if row["method"] == n])) for n in names}
    if "spectral" not in means:
        return []
    finding = ", ".join(f"{name} {value:.0f}" for name, value in means.items())
    verdict = HOLDS if max(means, key=lambda name: means[name]) == "spectral" else FAILS
    return [("Spectral clustering makes the highest degree variance", rows[0]["data"], finding, verdict)]


def check(rows: list[Row]) -> list[str]:
    """Checks that shared items lose no edge, and the paper's reasons for spectral clustering."""
    good = [row for row in rows if "problem" not in row]
    complaints = _problem_lines(rows)
    complaints += [
        f"{row['method']}: expected every edge kept, got {row['edges_kept']}"
        for row in good
        if row["method"] in WHOLE and row["edges_kept"] != 1.0
    ]
    means = {
        (method, name): np.mean([row[name] for row in good if row["method"] == method])
        for method in {row["method"] for row in good}
        for name in ("density", "size_variance")
    }
    complaints += [
        f"expected a larger {name} of spectral than of random parts, got {means['spectral', name]}"
        for name in ("density", "size_variance")
        if {("spectral", name), ("random", name)} <= means.keys()
        and not means["spectral", name] > means["random", name]
    ]
    return complaints
