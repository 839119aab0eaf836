"""The kept models of a silo, for its operator: which there are, and an earlier one in the place of the served one."""

from __future__ import annotations

from pathlib import Path

from client_service.best_model import load_version
from client_service.schemas import KeptModelOut, ModelsOut
from client_service.serving.checkpoint import ModelHead
from client_service.serving.versions import choose_version, kept_versions
from client_service.silo import Silo
from shared.errors import ConflictError, DataError, NotFoundError


def list_models(folder: Path) -> ModelsOut:
    """The served one first."""
    return ModelsOut(models=tuple(_describe(head, place == 0) for place, head in enumerate(kept_versions(folder))))


def serve_version(folder: Path, silo: Silo, version: str) -> ModelsOut:
    """Answer by this model, also after a restart, until a run has one that validation prefers. Slow.

    NotFoundError for one that is not kept or is of another shard; ConflictError for a damaged one. Nothing is changed
    then.
    """
    chosen = next((head for head in kept_versions(folder) if head.version == version), None)
    if chosen is None or chosen.shard != silo.shard.digest:
        raise NotFoundError("expected the version of a kept model of the present shard, got another")
    try:
        served = load_version(silo.task, silo.shard, folder, silo.device, chosen)
    except DataError as error:
        raise ConflictError(str(error)) from None  # not the caller's mistake
    with silo.answers.changing:
        choose_version(folder, chosen)
        silo.answers.served = served
    return list_models(folder)


def _describe(head: ModelHead, served: bool) -> KeptModelOut:
    return KeptModelOut(version=head.version, run=head.run, round=head.round, served=served, values=head.values)
