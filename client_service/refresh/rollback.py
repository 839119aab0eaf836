"""Lists the kept models of a silo, and serves an earlier one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import Field

from client_service.federation.best_model import load_version
from client_service.federation.client_run import Silo
from client_service.model_store.model_files import ModelHead, load_head
from client_service.model_store.model_server import FrozenModel
from client_service.model_store.model_versions import choose_version, load_versions, next_number
from client_service.refresh.rebuild import ModelRenewal
from client_service.serving.messages import Version
from shared.errors import ConflictError, DataError, NotFoundError
from shared.message import Message

PATIENCE_SECONDS = 5.0  # a model that a round has given is put in place in less


class KeptModelOut(Message):
    """Kept model that an operator can serve again."""

    version: Version = Field(description="by which it is asked for")
    run: str = Field(
        description="the run that trained it; refresh: computed without one, from a shard that had changed",
        examples=["run-1"],
    )
    round: int = Field(ge=0, description="of that run")
    served: bool = Field(description="it answers now")
    present_shard: bool = Field(
        True, description="False: of the shard before a refresh; chosen, it is taken over under another version"
    )
    values: dict[str, float] = Field(description="its measures on validation data", examples=[{"ndcg": 0.21}])


class ModelsOut(Message):
    """The kept models; the one that answers is the first."""

    models: tuple[KeptModelOut, ...] = Field(description="the served one first")


def list_models(folder: Path, silo: Silo) -> ModelsOut:
    """Lists the kept models, first the one that a restart would serve.

    None of them is marked as served where the shard's own model could not be loaded.
    """
    served = silo.answers.served
    version = None if served is None else served.version
    return ModelsOut(models=tuple(_describe(head, silo.shard.digest, version) for head in load_versions(folder)))


def serve_version(folder: Path, silo: Silo, version: str) -> ModelsOut:
    """Serves a kept model until a run finds a better one. Slow.

    The choice survives a restart. A model of an earlier shard is transferred by the ids of users and items, under a
    new version. Raises NotFoundError for an unknown version, ConflictError for a damaged one and during a refresh;
    then nothing changes.
    """
    with _lock_changes(silo.answers.changing):
        chosen = next((head for head in load_versions(folder) if head.version == version), None)
        if chosen is None:
            raise NotFoundError("expected the version of a kept model, got an unknown one: GET /v1/models lists them")
        current = load_head(folder)
        if current is None or current.shard != silo.shard.digest:
            words = "expected a kept model of the present shard, got none"
            raise ConflictError(f"{words}: try again after the refresh, or after a run")
        silo.answers.served = _load(folder, silo, chosen)
    return list_models(folder, silo)


@contextmanager
def _lock_changes(lock: threading.Lock) -> Iterator[None]:
    if not lock.acquire(timeout=PATIENCE_SECONDS):
        raise ConflictError("expected no running refresh, got one: try again when it has ended")
    try:
        yield
    finally:
        lock.release()


def _load(folder: Path, silo: Silo, chosen: ModelHead) -> FrozenModel:
    """Loads the model and makes it the served one."""
    if chosen.shard != silo.shard.digest:
        return _transfer(silo, chosen, next_number(folder))
    try:
        everything = silo.settings.fit_everything
        served = load_version(silo.task, silo.shard, folder, silo.device, chosen, fit_everything=everything)
    except DataError as error:
        raise ConflictError(str(error)) from None  # not the caller's mistake
    choose_version(folder, chosen)
    return served


def _transfer(silo: Silo, chosen: ModelHead, number: int) -> FrozenModel:
    of_shard = {"shard": silo.shard.digest, "text": silo.task.text_digest(silo.shard)}
    renewal = ModelRenewal(silo.settings, silo.task, silo.shard, silo.device, silo.interrupt)
    found = renewal.transfer(chosen, chosen.model_copy(update={**of_shard, "number": number}))
    if found is None:
        raise ConflictError("expected a model that fits the present shard, got one that is damaged or of another kind")
    return renewal.keep(found)


def _describe(head: ModelHead, shard: str, served: str | None) -> KeptModelOut:
    return KeptModelOut(
        version=head.version,
        run=head.run,
        round=head.round,
        served=head.version == served and head.shard == shard,
        present_shard=head.shard == shard,
        values=head.values,
    )
