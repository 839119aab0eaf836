"""Shard -> its spectrum, computed once and kept beside the model under the shard's digest."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.numpy import load_file

from client_service.data.interactions import Shard
from shared.files import save_arrays
from shared.method.graph import Float64
from shared.method.spectrum import Spectrum, low_spectrum


def cached_spectrum(shard: Shard, cutoff: int, folder: Path | None) -> Spectrum:
    """The low spectrum of the shard's training graph.

    The file's name holds the digest and the cut-off: when the shard changes, the basis turns and the old file is of
    no use. A file that cannot be read is computed anew. Without a folder nothing is kept.
    """
    if folder is None:
        return low_spectrum(shard.train, cutoff)
    path = folder / f"spectrum-{shard.digest[:16]}-{cutoff}.safetensors"
    kept = _read(path)
    return kept if kept is not None else _compute_spectrum(shard, cutoff, path)


def _read(path: Path) -> Spectrum | None:
    try:
        arrays = load_file(path)
        return Spectrum(arrays["singular"], arrays["users"], arrays["items"])
    except (FileNotFoundError, SafetensorError, KeyError):
        return None


def _compute_spectrum(shard: Shard, cutoff: int, path: Path) -> Spectrum:
    spectrum = low_spectrum(shard.train, cutoff)
    path.parent.mkdir(parents=True, exist_ok=True)
    for old in path.parent.glob("spectrum-*.safetensors"):  # a cut-off tried before, or a shard that is gone
        old.unlink(missing_ok=True)
    arrays: dict[str, Float64] = {"singular": spectrum.singular, "users": spectrum.users, "items": spectrum.items}
    ordered = {name: value.copy(order="C") for name, value in arrays.items()}
    save_arrays(path, ordered)
    return Spectrum(**ordered)  # in the memory order of one that is read: a restart must not change a sum's order
