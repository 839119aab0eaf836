"""Deletes files that were computed from earlier contents of a silo's shard.

Files that follow from the shard alone are deleted with each change. After an erasure everything is deleted that is
not known to be of the present shard: models of earlier shards, and partly written files of a killed process. Figures
(quality, kernels), sums over all silos and records of what has left stay: they hold no interaction and no parameter
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
    """Deletes files of earlier contents of the shard, which the store lists.

    `shard`: digest of the present content, whose model is kept. Call it before lists of the present shard are
    computed. A second call does nothing.
    """
    stale = store.list_stale_shards()
    if stale:
        delete_shard_files(settings, shard, stale, erased=erased)
        store.remove_stale_shards(stale)


def delete_shard_files(settings: ClientSettings, shard: str, stale: Iterable[str], *, erased: bool) -> None:
    """Deletes files computed from the `stale` contents of the shard.

    `stale`, `shard`: digests; files of `shard` stay. erased: delete also everything else that follows from any other
    content.
    """
    models, gone = settings.models_directory, [one[:SHORT] for one in stale if one != shard]
    names = [f"{kind}-{one}*" for one in gone for kind in COMPUTED]
    for folder in {models, settings.cache_directory or models}:
        _remove(folder, [*names, *(f".{name}" for name in names)])
    delete_checkpoint(models)
    if erased:
        delete_other_models(models, shard)


def delete_other_models(models: Path, shard: str) -> None:
    """Deletes all models but the served one of this shard.

    What is computed from the shard stays, and figures.
    """
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
