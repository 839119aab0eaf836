"""A silo's settings and a run's name, seed and method -> where the run belongs, and its sums of the common basis."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from client_service.basis.storage import FOLDER
from client_service.basis_run import BasisRun
from client_service.policy import allowed_declaration
from client_service.serving.numbers import number_of_run
from client_service.settings import ClientSettings
from client_service.tasks.task import Place, Task, TaskShard
from shared.errors import PrivacyError
from shared.method.declaration import Part
from shared.method.setting_groups import BasisSettings
from shared.method.settings import MethodSettings
from shared.strategies import build_strategy
from shared.strategies.agreement import settle_similarity


def basis_folder(settings: ClientSettings) -> Path:
    """Where the silo's common bases are kept."""
    return settings.state_directory / FOLDER


def place_run(settings: ClientSettings, run: str, seed: int, method: MethodSettings) -> Place:
    """The place of a run without a common basis."""
    kind = build_strategy(settings.strategy, method).model
    folder, cache = settings.models_directory, settings.cache_directory
    number = number_of_run(folder, run)
    kept, everything = settings.kept_models, settings.fit_everything
    return Place(
        settings.name, run, seed, method, folder, kind, cache, versions=kept, number=number, fit_everything=everything
    )


def agree_method(settings: ClientSettings, asked: MethodSettings | None, part: Part) -> MethodSettings:
    """The settings of a run. PrivacyError where they would let leave what this silo has not declared, or hand out more
    of its sums than its own settings."""
    agreed = settle_similarity(asked or settings.method, secure=settings.secure)
    strategy = build_strategy(settings.strategy, agreed)
    allowed = allowed_declaration(strategy, agreed, settings.policy, secure=settings.secure)
    if allowed.of_part(part) != settings.declaration().of_part(part):
        raise PrivacyError("the run's settings would send other parameters than this client has declared")
    if part == "basis":
        _require_as_careful(settings.method.basis, agreed.basis)
    return agreed


def _require_as_careful(own: BasisSettings, asked: BasisSettings) -> None:
    """PrivacyError for sums of which more is handed out than with the silo's own settings.

    Sums over the same data with two exponents weigh users of each degree differently: their difference tells of single
    users, and no rule counts it, because nobody's data have changed.
    """
    if asked.kind == "iterated" and asked.exponent != own.exponent:
        words = f"expected a run with basis.exponent = {own.exponent:g}, as in this client's settings"
        raise PrivacyError(f"{words} (method.basis.exponent), got {asked.exponent:g}")
    for name in ("least_pairs", "least_silos"):
        if (got := getattr(asked, name)) < (least := getattr(own, name)):
            words = f"expected a run with basis.{name} = {least} or more, as in this client's settings"
            raise PrivacyError(f"{words} (method.basis.{name}), got {got}")


def open_basis_run(
    settings: ClientSettings, task: Task[Any, Any], shard: TaskShard, place: Place, clients: int
) -> BasisRun:
    """The silo's part of the sums of a basis run that has room for so many clients, before any round. Slow.

    In a silo that fits its models on everything, everything is counted in exact sums without noise. The directions of
    others would tell what is judged in them the answers, and no silo can take its own part of them away.
    """
    basis = place.method.basis
    everything = settings.fit_everything and basis.kind == "exact" and basis.epsilon is None
    counted = task.everything(shard) if everything else shard
    interactions = task.count_in_catalogue(counted, place.method.catalogue)
    folder, summed = basis_folder(settings), task.digest_summed(counted)
    return BasisRun(place, interactions, folder, clients, summed, everything=everything)
