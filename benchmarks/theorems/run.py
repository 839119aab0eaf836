"""Check of Theorems 4.1 and 4.2 on graphs drawn from block models of growing size."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse
from threadpoolctl import threadpool_limits

from benchmarks.common import render_table
from benchmarks.harness.claims import FAILS, HOLDS
from shared.errors import SettingsError
from shared.method.divergence import divergence, kernel
from shared.method.graph import Float64, normalise
from shared.method.spectrum import low_spectrum

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class BlockModel:
    """Block model with evenly spaced edge probabilities inside communities.

    From within[0] to within[1]; between any two communities `between`. thinning multiplies all of them.
    """

    communities: int
    within: tuple[float, float]
    between: float
    thinning: float = 1.0

    def edge_chances(self) -> Float64:
        """Returns edge probabilities between communities, (k, k)."""
        table = np.full((self.communities, self.communities), self.between)
        np.fill_diagonal(table, np.linspace(*self.within, self.communities))
        return table * self.thinning


def community_labels(nodes: int, communities: int) -> Int64:
    """Assigns nodes to communities of equal size, (nodes,).

    The last ones are smaller by one where it does not divide.
    """
    return np.sort(np.arange(nodes) % communities)


def expected_graph(model: BlockModel, nodes: int) -> sparse.csr_array:
    """Returns E[R] of a graph with `nodes` users and as many items."""
    own = community_labels(nodes, model.communities)
    return sparse.csr_array(model.edge_chances()[own][:, own])


def draw_graph(model: BlockModel, nodes: int, rng: np.random.Generator) -> sparse.csr_array:
    """Draws one graph with independent edges, (nodes, nodes), 0/1."""
    own = community_labels(nodes, model.communities)
    return sparse.csr_array((rng.random((nodes, nodes)) < model.edge_chances()[own][:, own]).astype(np.float64))


def structural_eigenvalues(model: BlockModel, nodes: int, cutoff: int) -> Float64:
    """Computes the `cutoff` lowest eigenvalues of the expected Laplacian, (cutoff,).

    Its matrix has rank k, so that all beyond the k-th are exactly 1.
    """
    eigenvalues = low_spectrum(expected_graph(model, nodes), min(cutoff, model.communities)).eigenvalues
    return np.pad(eigenvalues, (0, cutoff - len(eigenvalues)), constant_values=1.0)


def community_eigengap(eigenvalues: Float64, communities: int) -> float:
    """Computes delta = lambda_{k+1} - lambda_k; a missing eigenvalue counts as 1."""
    following = eigenvalues[communities] if len(eigenvalues) > communities else 1.0
    return float(following - eigenvalues[communities - 1])


def community_indicators(nodes: int, communities: int) -> Float64:
    """Returns orthonormal indicators of communities, chi (2 nodes, k).

    Users and items of one community share a column.
    """
    table = (np.tile(community_labels(nodes, communities), 2)[:, None] == np.arange(communities)).astype(np.float64)
    scaled: Float64 = table / np.sqrt(table.sum(axis=0))
    return scaled


def both_sides(graph: sparse.csr_array, communities: int) -> dict[str, float]:
    """Computes both sides of Lemma 1 and Theorem 4.2 for one graph.

    lemma: largest |P_k P_k^T x - chi chi^T x| over |x| = 1, and its bound. smoothness: largest |Var(z) - Var(z*)| over
    |x| <= 1 with Var(z) = z^T L z, and its bound, the term that the proof's last step drops (Eq. 82), and 2, which
    holds for any two vectors no longer than 1.
    """
    spectrum = low_spectrum(graph, communities + 1)
    gap = community_eigengap(spectrum.eigenvalues, communities)
    own = spectrum.cut(communities)
    chi = community_indicators(graph.shape[0], communities)
    root = np.sqrt(communities)
    return {
        "gap": gap,
        "lemma": _norm_of_difference(own.basis, np.eye(len(own.singular)), chi, np.eye(communities)),
        "lemma_bound": 8.0 * root / gap,
        "left": _norm_of_difference(own.basis, np.diag(own.eigenvalues), chi, chi.T @ _laplacian_times(graph, chi)),
        "bound": 32.0 * root / gap,
        "dropped": 128.0 * communities / gap**2,
        "trivial": 2.0,
        "lambda_k": float(own.eigenvalues[-1]),
    }


def _norm_of_difference(first: Float64, inner: Float64, second: Float64, other: Float64) -> float:
    """Computes a spectral norm of the difference of two low-rank matrices.

    |A X A^T - B Y B^T| for orthonormal A and B, in the space that both span together.
    """
    base, _ = linalg.qr(np.concatenate([first, second], axis=1), mode="economic")
    left, right = base.T @ first, base.T @ second
    return float(np.abs(linalg.eigvalsh(left @ inner @ left.T - right @ other @ right.T)).max())


def _laplacian_times(graph: sparse.csr_array, columns: Float64) -> Float64:
    """Multiplies the normalised Laplacian by X, (M + N, k).

    L = I - D^-1/2 A D^-1/2.
    """
    half, users = normalise(graph), graph.shape[0]
    mixed = np.concatenate([half @ columns[users:], half.T @ columns[:users]])
    product: Float64 = columns - mixed
    return product


Row = dict[str, Any]
Pair = tuple[BlockModel, BlockModel]
PROMISED = -0.5  # slope of the error on log-log axes, at the most
RATED = ("error", "spread")
MEANS = ("gap", "lemma", "lemma_bound", "left", "bound", "dropped", "trivial", "lambda_k")


def run(config: dict[str, Any], *, quick: bool, data: Path | None, out: Path) -> list[Row]:
    """Measures errors by regime, cut-off and size, fitted rates, and eigengaps."""
    del quick, data, out  # nothing is read, and the configuration says already how much is drawn
    with threadpool_limits(1):  # matrices of a few hundred rows: threads only wait for one another
        cells = product(config["regimes"], config["sizes"])
        errors = [row for cell in cells for row in _concentration_rows(config, *cell)]
        gaps = [_gap_row(config, between) for between in config["gap"]["between"]]
        sides = [_smoothness_row(config, between) for between in config["gap"]["between"]]
    series = product(config["regimes"], config["cutoffs"])
    return [*errors, *(_rate_row(errors, regime, cutoff) for regime, cutoff in series), *gaps, *sides]


def _make_models(config: dict[str, Any], between: float | None = None, thinning: float = 1.0) -> Pair:
    both = (config["first"], config["second"])
    made = [
        BlockModel(
            config["communities"], tuple(model["within"]), model["between"] if between is None else between, thinning
        )
        for model in both
    ]
    return made[0], made[1]


def _concentration_rows(config: dict[str, Any], regime: str, n: int) -> list[Row]:
    """Computes |KL - D*| over the seeds at one size, for each cut-off.

    n = M + N.
    """
    thinning = 1.0 if regime == "dense" else config["sizes"][0] / n  # sparse: a node's mean degree stays constant
    models, cutoffs = _make_models(config, thinning=thinning), config["cutoffs"]
    pairs = _drawn_eigenvalues(models, n // 2, max(cutoffs), config["seeds"])
    head = {"part": "concentration", "regime": regime, "n": n}
    return [
        {
            **head,
            "cutoff": phi,
            **_error_figures(_drawn_divergences(pairs, phi), _structural_divergence(models, n // 2, phi)),
        }
        for phi in cutoffs
    ]


def _drawn_eigenvalues(models: Pair, nodes: int, cutoff: int, seeds: int) -> list[tuple[Float64, Float64]]:
    """Computes the low end of the two models' spectra, for each seed."""
    generators = [np.random.default_rng([seed, nodes]) for seed in range(seeds)]
    first, second = (
        [low_spectrum(draw_graph(m, nodes, rng), cutoff).eigenvalues for rng in generators] for m in models
    )
    return list(zip(first, second, strict=True))


def _structural_divergence(models: Pair, nodes: int, cutoff: int) -> float:
    """Computes D_struct of the expected graphs (Eq. 45)."""
    ideal = [kernel(structural_eigenvalues(model, nodes, cutoff)) for model in models]
    limit = divergence(ideal[0], ideal[1])
    if limit is None:
        raise SettingsError(f"theorems: expected a cut-off with at least 8 non-zero frequencies, got {cutoff}")
    return limit


def _drawn_divergences(pairs: list[tuple[Float64, Float64]], cutoff: int) -> list[float]:
    """Computes KL of each pair of drawn graphs with at least 8 common frequencies."""
    divergences = [divergence(kernel(first[:cutoff]), kernel(second[:cutoff])) for first, second in pairs]
    return [value for value in divergences if value is not None]


def _error_figures(divergences: list[float], limit: float) -> Row:
    """Computes the error of KL, and its spread around its own mean."""
    errors = np.abs(np.array(divergences) - limit)
    return {
        "structural": limit,
        "divergence": float(np.mean(divergences)),
        "spread": float(np.std(divergences, ddof=1)),
        "error": float(errors.mean()),
        "error_std": float(errors.std(ddof=1)),
        "seeds": len(divergences),
    }


def _rate_row(rows: list[Row], regime: str, cutoff: int) -> Row:
    """Computes slopes of log error and of log spread against log n."""
    own = [row for row in rows if (row["regime"], row["cutoff"]) == (regime, cutoff)]
    sizes = np.log([row["n"] for row in own])
    slopes = {f"{name}_slope": float(np.polyfit(sizes, np.log([row[name] for row in own]), 1)[0]) for name in RATED}
    return {"part": "rate", "regime": regime, "cutoff": cutoff, **slopes}


def _gap_row(config: dict[str, Any], between: float) -> Row:
    """Computes |KL - D_struct| and the smaller eigengap, at one size (Theorem 4.1, part 2)."""
    n, cutoff = config["gap"]["n"], config["communities"]
    models = _make_models(config, between)
    divergences = _drawn_divergences(_drawn_eigenvalues(models, n // 2, cutoff, config["gap"]["seeds"]), cutoff)
    gaps = [community_eigengap(structural_eigenvalues(model, n // 2, cutoff), cutoff) for model in models]
    return {
        "part": "gap",
        "n": n,
        "between": between,
        "gap": min(gaps),
        **_error_figures(divergences, _structural_divergence(models, n // 2, cutoff)),
    }


def _smoothness_row(config: dict[str, Any], between: float) -> Row:
    """Computes both sides of Lemma 1 and of Theorem 4.2, means over the seeds."""
    n, model = config["gap"]["n"], _make_models(config, between)[0]
    sides = [
        both_sides(draw_graph(model, n // 2, np.random.default_rng(seed)), model.communities)
        for seed in range(config["gap"]["seeds"])
    ]
    means = {name: float(np.mean([side[name] for side in sides])) for name in MEANS}
    held = all(side["left"] <= side["bound"] and side["lemma"] <= side["lemma_bound"] for side in sides)
    return {"part": "smoothness", "n": n, "between": between, "held": held, **means}


def render(rows: list[Row]) -> str:
    """Renders rates, errors by size, errors by gap, and the sides of Theorem 4.2."""
    return "\n\n".join((_rates_section(rows), _sizes_table(rows), _gaps_section(rows), _sides_section(rows)))


def _rows_of_part(rows: list[Row], part: str) -> list[Row]:
    return [row for row in rows if row["part"] == part]


def _rates_section(rows: list[Row]) -> str:
    lines = [
        (row["regime"], str(row["cutoff"]), f"{row['error_slope']:.2f}", f"{row['spread_slope']:.2f}")
        for row in _rows_of_part(rows, "rate")
    ]
    table = render_table(("degrees", "Phi", "slope of the error", "slope of the spread"), lines)
    return "Theorem 4.1, part 1: it promises slopes of -0.5 or less on log-log axes.\n\n" + table


def _sizes_table(rows: list[Row]) -> str:
    lines = [
        (
            row["regime"],
            str(row["cutoff"]),
            str(row["n"]),
            f"{row['structural']:.2e}",
            f"{row['error']:.2e} ± {row['error_std']:.1e}",
            f"{row['spread']:.1e}",
        )
        for row in sorted(
            _rows_of_part(rows, "concentration"), key=lambda row: (row["regime"], row["cutoff"], row["n"])
        )
    ]
    return render_table(("degrees", "Phi", "n", "D*", "mean \\|KL - D*\\|", "spread of KL"), lines)


def _gaps_section(rows: list[Row]) -> str:
    lines = [
        (f"{row['gap']:.3f}", f"{row['error']:.2e} ± {row['error_std']:.1e}", f"{row['error'] * row['gap']:.1e}")
        for row in _rows_of_part(rows, "gap")
    ]
    table = render_table(("delta", "mean \\|KL - D_struct\\|", "C that would do"), lines)
    return "Theorem 4.1, part 2: the error against the eigengap, which is to bound it by C / delta.\n\n" + table


def _sides_section(rows: list[Row]) -> str:
    head = ("delta", "Lemma 1: left", "its bound", "Theorem 4.2: left", "its bound", "dropped term", "trivial bound")
    names = ("lemma", "lemma_bound", "left", "bound", "dropped", "trivial")
    lines = [
        (f"{row['gap']:.3f}", *(f"{row[name]:.3g}" for name in names)) for row in _rows_of_part(rows, "smoothness")
    ]
    return "Lemma 1 and Theorem 4.2 for the worst signal with r = 1.\n\n" + render_table(head, lines)


def claims(rows: list[Row]) -> list[tuple[str, str, str, str]]:
    """Judges the promised rates in both regimes, and the bound of Theorem 4.2."""
    regimes = dict.fromkeys(row["regime"] for row in _rows_of_part(rows, "rate"))
    rates = [
        _rate_claim([row for row in _rows_of_part(rows, "rate") if row["regime"] == regime], regime)
        for regime in regimes
    ]
    sides = _rows_of_part(rows, "smoothness")
    held = all(row["held"] for row in sides)
    looser = min(row["bound"] / row["trivial"] for row in sides)
    finding = f"the bound {'holds' if held else 'breaks'}; it is {looser:.3g} times the trivial one, or more"
    verdict = FAILS if not held else f"{HOLDS}, and says nothing" if looser >= 1 else HOLDS
    return [*rates, ("Theorem 4.2: the eigengap bounds the variance", "block graphs", finding, verdict)]


def _rate_claim(rows: list[Row], regime: str) -> tuple[str, str, str, str]:
    slopes = ", ".join(f"{row['error_slope']:.2f} (Phi {row['cutoff']})" for row in rows)
    verdict = HOLDS if all(row["error_slope"] <= PROMISED for row in rows) else FAILS
    return "Theorem 4.1: the KL's error falls as n^-0.5", f"{regime} block graphs", f"slopes {slopes}", verdict


def check(rows: list[Row]) -> list[str]:
    """Checks concentration where degrees grow, and that the bounds hold."""
    complaints = []
    for row in _rows_of_part(rows, "rate"):
        if row["regime"] == "dense" and not row["error_slope"] < -0.4:
            complaints.append(f"Phi {row['cutoff']}: expected the error to fall as n^-0.4 or faster, got {row}")
    for row in _rows_of_part(rows, "smoothness"):
        if not row["held"]:
            complaints.append(f"expected both bounds to hold on every graph, got {row}")
        if not row["bound"] > 4 * row["trivial"]:
            complaints.append(f"expected a bound above four times the trivial one, got {row}")
    return complaints
