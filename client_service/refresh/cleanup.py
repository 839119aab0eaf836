"""A shard that has changed -> no file of the silo has what was computed from what it was, and is of no more use.

What was computed from the shard alone goes with each change. Where somebody was erased everything goes that is not
known to be of the present shard: models of earlier shards, and what a kill has left in the middle of writing. What
stays are figures (quality, kernels), sums over all silos, and records of what has left: no interaction and no parameter
of a user.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from client_service.event_log.log_store import LogStore
from client_service.federation.checkpoint import delete_checkpoint
from client_service.federation.run_records import QUALITY, SPECTRA
from client_service.model_store.model_files import load_head
from client_service.model_store.model_versions import NAME as NUMBERS
from client_service.model_store.model_versions import list_model_files
from client_service.settings import ClientSettings

COMPUTED = ("spectrum", "choice", "everything")  # from a shard alone: kept under the first characters of its digest
FIGURES = frozenset({QUALITY, SPECTRA, NUMBERS})
SHORT = 16


def delete_outdated_files(settings: ClientSettings, store: LogStore, shard: str, *, erased: bool) -> None:
    """Remove what is left of earlier contents of the shard, of which the store knows. `shard`: the digest of the
    present one, whose model is kept. To be called before lists by it are computed; done again, it does nothing."""
    stale = store.read_stale()
    if stale:
        delete_shard_files(settings, shard, stale, erased=erased)
        store.forget_stale(stale)


def delete_shard_files(settings: ClientSettings, shard: str, stale: Iterable[str], *, erased: bool) -> None:
    """Remove what was computed from the `stale` contents of the shard, all by their digests, unless it is `shard`.

    erased: and everything else that follows from any other content than that of `shard`.
    """
    models, gone = settings.models_directory, [one[:SHORT] for one in stale if one != shard]
    names = [f"{kind}-{one}*" for one in gone for kind in COMPUTED]
    for folder in {models, settings.cache_directory or models}:
        _remove(folder, [*names, *(f".{name}" for name in names)])
    delete_checkpoint(models)
    if erased:
        delete_other_models(models, shard)


def delete_other_models(models: Path, shard: str) -> None:
    """Leave of a folder of models the served one of this shard, what is computed from that, and figures."""
    head = load_head(models)
    kept = FIGURES | (list_model_files(head) if head is not None and head.shard == shard else frozenset())
    computed = tuple(f"{kind}-{shard[:SHORT]}" for kind in COMPUTED)
    for path in models.glob("*"):
        if path.name.startswith(computed):
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name not in kept:
            path.unlink(missing_ok=True)


def _remove(folder: Path, patterns: Iterable[str]) -> None:
    for pattern in patterns:
        for path in folder.glob(pattern):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
