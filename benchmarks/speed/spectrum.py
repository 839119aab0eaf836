"""Seconds and peak memory of the low spectrum, compared with scipy's Lanczos."""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from pathlib import Path

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import eigsh

from shared.method.graph import interaction_matrix, normalise
from shared.method.spectrum import low_spectrum
from simulation.datasets.load import load_dataset


def read_graph(path: Path) -> sparse.csr_array:
    """Reads all training edges as one graph."""
    train = load_dataset(path, seed=0, draws="table").events.filter(split="train")
    users, items = (train[name].rank("dense").to_numpy().astype(np.int64) - 1 for name in ("user", "item"))
    return interaction_matrix(users, items, (int(users.max()) + 1, int(items.max()) + 1))


def svd_eigenvalues(matrix: sparse.csr_array, cutoff: int) -> np.ndarray:
    """Computes the smallest eigenvalues of the Laplacian as the project does."""
    return low_spectrum(matrix, cutoff).eigenvalues


def lanczos_eigenvalues(matrix: sparse.csr_array, cutoff: int) -> np.ndarray:
    """Computes the smallest eigenvalues of L = I - D^-1/2 A D^-1/2 itself."""
    half = normalise(matrix)
    laplacian = sparse.eye_array(sum(half.shape)) - sparse.block_array([[None, half], [half.T, None]])
    start = np.random.default_rng(0).standard_normal(laplacian.shape[0])
    return np.sort(eigsh(laplacian.tocsr(), k=cutoff, which="SA", v0=start, return_eigenvectors=True)[0])


def measure_method(method: str, path: Path, cutoff: int) -> tuple[float, float, np.ndarray]:
    """Measures seconds, peak megabytes and eigenvalues, in its own process."""
    matrix = sparse.csr_array(sparse.load_npz(path))
    began = time.perf_counter()
    values = {"ours": svd_eigenvalues, "lanczos": lanczos_eigenvalues}[method](matrix, cutoff)
    seconds = time.perf_counter() - began
    return seconds, peak_megabytes(), values


def peak_megabytes() -> float:
    """Returns Linux's own peak of this process; getrusage includes the parent's."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--cutoffs", type=int, nargs="+", default=[64, 128])
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool,
    ):
        kept = Path(folder) / "graph.npz"
        sparse.save_npz(kept, read_graph(arguments.data))
        for cutoff in arguments.cutoffs:
            a = pool.apply(measure_method, ("ours", kept, cutoff))
            b = pool.apply(measure_method, ("lanczos", kept, cutoff))
            print(f"Phi {cutoff}: bipartite SVD {a[0]:.2f} s, peak {a[1]:.0f} MB;", end=" ")
            print(f"Lanczos on L {b[0]:.2f} s, peak {b[1]:.0f} MB; ratio {b[0] / a[0]:.1f};", end=" ")
            print(f"largest difference {np.abs(a[2] - b[2]).max():.1e}")


if __name__ == "__main__":
    main()
