"""Keeps the spectra of a shard's training graph beside the model, under the shard's digest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file
from scipy import sparse

from client_service.data.interactions import Shard
from shared.files import save_arrays
from shared.method.spectrum import Spectrum, low_spectrum

RANKING = "ranking-"  # in the names of spectra that scorers rank by
NAMES = ("singular", "users", "items")


@dataclass(frozen=True)
class KeptSpectrum(Spectrum):
    """A spectrum that is kept at `path`; further spectra of the same graph are kept beside it."""

    path: Path

    def rank_by(self, interactions: sparse.csr_array, cutoff: int, exponent: float) -> Spectrum:
        """Reads a further spectrum of the same graph, or computes and keeps it."""
        name = "-".join(self.path.name.split("-")[:2])
        path = self.path.with_name(f"{name}-{RANKING}{cutoff}-{exponent:g}.safetensors")
        kept = _read(path)
        return kept if kept is not None else _keep(super().rank_by(interactions, cutoff, exponent), path, np.float32)


def cached_spectrum(shard: Shard, cutoff: int, folder: Path | None) -> Spectrum:
    """The low spectrum of the shard's training graph.

    The file's name holds the digest and the cut-off: when the shard changes, the basis turns and the old file is of
    no use. A file that cannot be read is computed anew. Without a folder nothing is kept.
    """
    if folder is None:
        return low_spectrum(shard.train, cutoff)
    path = folder / f"spectrum-{shard.digest[:16]}-{cutoff}.safetensors"
    found = _read(path)
    if found is None:
        found = _keep(low_spectrum(shard.train, cutoff), path, np.float64)
    return KeptSpectrum(found.singular, found.users, found.items, path)


def _read(path: Path) -> Spectrum | None:
    try:
        arrays = load_file(path)
        return Spectrum(*(arrays[name].astype(np.float64, copy=False) for name in NAMES))
    except (FileNotFoundError, SafetensorError, KeyError):
        return None


def _keep(spectrum: Spectrum, path: Path, dtype: type[np.float32 | np.float64]) -> Spectrum:
    """Replaces spectra of the same kind: of a cut-off tried before, or of a shard that is gone.

    What is returned lies in memory as one that is read: a restart must not change the order in which a sum is made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for old in path.parent.glob("spectrum-*.safetensors"):
        if (RANKING in old.name) == (RANKING in path.name):
            old.unlink(missing_ok=True)
    arrays = {name: getattr(spectrum, name).astype(dtype, order="C") for name in NAMES}
    save_arrays(path, arrays)
    return Spectrum(*(arrays[name].astype(np.float64, copy=False) for name in NAMES))
