"""A shard that has changed -> no file of the silo has anything that was computed from what it was."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from client_service.serving.checkpoint import read_head
from client_service.serving.versions import drop_all
from client_service.settings import ClientSettings
from client_service.training_checkpoint import drop_training

KEYED = ("spectrum-{}-*", "choice-{}-*")  # by the first characters of the digest of their shard
OF_A_MODEL = ("lists-*", "nearest-*")
SHORT = 16


def forget_shards(settings: ClientSettings, shard: str, stale: Iterable[str]) -> tuple[str, ...]:
    """Remove what was computed from the `stale` contents of the shard, all by their digests, unless it is `shard`, the
    one that it has now. Which are forgotten now.

    To be called once the model of the present shard is kept, and before its lists are computed. What stays are figures
    (quality, kernels), sums over all silos, and records of what has left: no interaction and no parameter of a user.
    """
    gone = tuple(digest for digest in stale if digest != shard)
    if not gone:
        return gone
    models = settings.models_directory
    for folder in {models, settings.cache_directory or models}:
        _remove(folder, (pattern.format(digest[:SHORT]) for digest in gone for pattern in KEYED))
    _remove(models, OF_A_MODEL)
    drop_training(models)
    head = read_head(models)
    if head is not None and head.shard != shard:
        drop_all(models)
    return gone


def _remove(folder: Path, patterns: Iterable[str]) -> None:
    for pattern in patterns:
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)
