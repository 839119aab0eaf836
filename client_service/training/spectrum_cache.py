"""Keeps the spectra of a shard's training graph beside the model, under the shard's digest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from safetensors import SafetensorError
from safetensors.numpy import load_file
from scipy import sparse

from client_service.data.interactions import Shard
from shared.cores import map_in_threads
from shared.files import save_arrays
from shared.method.graph import Float64
from shared.method.spectrum import RANKING, TRAINING, Accuracy, Spectrum, low_spectrum

SUFFIX = "safetensors"
NAMES = ("singular", "users", "items")
RANKED = "ranking"  # in the names of files whose spectrum is only exact enough to rank by


@dataclass(frozen=True)
class CachedSpectrum(Spectrum):
    """A spectrum kept at `path`, with further spectra of the same graph beside it."""

    path: Path

    def ranking_spectrum(self, interactions: sparse.csr_array, cutoff: int, exponent: float) -> Spectrum:
        """Reads a further spectrum of the same graph, or computes and keeps it."""
        digest, _ = _identify(self.path)
        return _ranking_spectrum(interactions, self.path.parent, digest, cutoff, exponent)


def cached_spectrum(
    shard: Shard,
    cutoff: int,
    folder: Path | None,
    accuracy: Accuracy = TRAINING,
    beside: tuple[int, float] | None = None,
) -> Spectrum:
    """Reads or computes the low spectrum of the shard's training graph.

    The file's name holds the digest and the cut-off: when the shard changes, the basis changes and the old file is of
    no use. A file that cannot be read is computed anew. Without a folder nothing is kept. beside: cut-off and exponent
    of a spectrum that `ranking_spectrum` will need; both are computed at the same time, since one keeps one core busy.
    """
    if folder is None:
        return low_spectrum(shard.train, cutoff, accuracy=accuracy)
    digest = shard.digest[:16]
    name = f"spectrum-{digest}-{cutoff}.{SUFFIX}" if accuracy is TRAINING else _ranking_name(digest, cutoff, 0.5)
    path = folder / name

    def find() -> Spectrum:
        return _read(path) or _keep(low_spectrum(shard.train, cutoff, accuracy=accuracy), path)

    jobs: list[Callable[[], Spectrum]] = [find]
    if beside is not None:
        jobs.append(partial(_ranking_spectrum, shard.train, folder, digest, *beside))
    found = map_in_threads(lambda job: job(), jobs)[0]
    return CachedSpectrum(found.singular, found.users, found.items, path)


def _ranking_spectrum(
    interactions: sparse.csr_array, folder: Path, digest: str, cutoff: int, exponent: float
) -> Spectrum:
    path = folder / _ranking_name(digest, cutoff, exponent)
    return _read(path) or _keep(low_spectrum(interactions, cutoff, exponent, accuracy=RANKING), path)


def _ranking_name(digest: str, cutoff: int, exponent: float) -> str:
    return f"spectrum-{digest}-{cutoff}-{RANKED}-{exponent:g}.{SUFFIX}"


def _read(path: Path) -> Spectrum | None:
    try:
        arrays = load_file(path)
        return Spectrum(*(arrays[name] for name in NAMES))
    except (FileNotFoundError, SafetensorError, KeyError):
        return None


def _keep(spectrum: Spectrum, path: Path) -> Spectrum:
    """Saves a spectrum, and deletes those that it replaces.

    These are the spectra of an earlier shard, and the same spectrum with another cut-off. The returned arrays have the
    memory layout of arrays that are read: a restart must not change the order in which a sum is made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    digest, kind = _identify(path)
    for old in path.parent.glob(f"spectrum-*.{SUFFIX}"):
        if _identify(old)[0] != digest or _identify(old)[1] == kind:
            old.unlink(missing_ok=True)
    arrays: dict[str, Float64] = {name: getattr(spectrum, name).copy(order="C") for name in NAMES}
    save_arrays(path, arrays)
    return Spectrum(**arrays)


def _identify(path: Path) -> tuple[str, tuple[str, ...]]:
    """Reads from a file's name the shard's digest, and the kind of spectrum.

    The kind tells spectra of one graph apart: empty for training, RANKED and the exponent for ranking.
    """
    _, digest, _, *kind = path.name.removesuffix(f".{SUFFIX}").split("-")
    return digest, tuple(kind)
