"""A run at this client: its place, its settings, and what the agent and the upload need of it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, Protocol, cast

import torch

from client_service.boundary.anchors import KnownAnchors
from client_service.boundary.policy import allowed_declaration
from client_service.data.interactions import Shard
from client_service.federation.basis_run import BasisRun
from client_service.federation.messages import RoundCosts
from client_service.metrics import ClientMetrics
from client_service.model_store.model_versions import find_run_number
from client_service.privacy.basis_guard import BasisGuard
from client_service.privacy.guard import Guard
from client_service.runtime.interruption import Interrupt
from client_service.secure_rounds.masking import Masking
from client_service.serving.model_server import ModelServer
from client_service.settings import ClientSettings
from client_service.sums.common_items import CommonItems, require_list
from client_service.sums.registry import find_silo_sum
from client_service.sums.silo_sum import Statistics, SummedDigests
from client_service.sums.storage import FOLDER, run_secret
from client_service.tasks.task import RunContext, Task, TaskShard
from client_service.training.training_state import RoundContext
from shared.errors import PrivacyError
from shared.method.declaration import TRAINING, Part
from shared.method.parameters import Parameters
from shared.method.settings import MethodSettings
from shared.strategies import build_strategy
from shared.strategies.agreement import settle_similarity
from shared.strategies.strategy import Strategy
from shared.sums import find_sum, method_of_part
from shared.sums.sum import EMPTY_PART_DIGEST


@dataclass(frozen=True)
class Silo:
    """What the agent works with and the network never sees. `interrupt`: what its slow work looks at. `guard`: there
    with differential privacy, `basis_guard`: with that of the common basis; `masking`: there in a secure federation;
    `anchors`: which ones rho was compared with."""

    settings: ClientSettings
    task: Task[Any, Any]
    shard: TaskShard
    answers: ModelServer
    device: torch.device
    metrics: ClientMetrics
    interrupt: Interrupt
    anchors: KnownAnchors
    guard: Guard | None = None
    basis_guard: BasisGuard | None = None
    masking: Masking | None = None

    @property
    def federation(self) -> str:
        """Returns the key of the aggregator where the silo pins one, else nothing."""
        return "" if self.masking is None else self.masking.aggregator


@dataclass(frozen=True)
class RefreshResult:
    """What a refresh did. `changed`: False where nothing had happened that the shard absorbs; then it stays as it is.

    waiting: likings that stay in the log until the catalogue of the federation lists their items. dropped: interactions
    that would have stayed, and for which the log had no room.
    """

    changed: bool
    model: str | None
    erased: int
    waiting: int
    dropped: int


@dataclass(frozen=True)
class RebuildResult:
    """The silo as it goes on, and what is left to do once it does: `finish` clears the log, and says what the refresh
    did. It is slow; where it fails it is done by the next refresh."""

    silo: Silo
    finish: Callable[[], RefreshResult]


def basis_folder(settings: ClientSettings) -> Path:
    """Where is kept what sums have become."""
    return settings.state_directory / FOLDER


def build_run_context(settings: ClientSettings, run: str, seed: int, method: MethodSettings) -> RunContext:
    """The place of a run without a common basis."""
    strategy = build_strategy(settings.strategy, method)
    folder, cache = settings.models_directory, settings.cache_directory
    number = find_run_number(folder, run)
    kept, everything = settings.kept_models, settings.fit_everything
    return RunContext(
        settings.name,
        run,
        seed,
        method,
        folder,
        strategy.model,
        cache,
        versions=kept,
        number=number,
        fit_everything=everything,
        broadcasts=tuple(spec.name for spec in strategy.broadcasts),
    )


def check_method(settings: ClientSettings, asked: MethodSettings | None, part: Part) -> MethodSettings:
    """The settings of a run. PrivacyError where they would let leave what this silo has not declared, or hand out more
    of its sums than its own settings."""
    agreed = settle_similarity(asked or settings.method, secure=settings.secure)
    strategy = build_strategy(settings.strategy, agreed)
    if part == TRAINING and build_strategy(settings.strategy, settings.method).sums_alone:
        raise PrivacyError("expected a run that sums, because this silo shares sums alone, got one that trains")
    allowed = allowed_declaration(strategy, agreed, settings.policy, secure=settings.secure)
    if allowed.of_part(part) != settings.declaration().of_part(part):
        raise PrivacyError("the run's settings would send other parameters than this client has declared")
    if part != TRAINING:
        _require_careful_settings(method_of_part(settings.method, part), agreed, find_sum(agreed).steady)
    return agreed


def _require_careful_settings(own: MethodSettings, asked: MethodSettings, steady: tuple[str, ...]) -> None:
    """PrivacyError for sums of which more is handed out than with the silo's own settings.

    steady: what must be the same. Sums over the same data with two exponents, for example, weigh users of each degree
    differently: their difference tells of single users, and no rule counts it, because nobody's data have changed.
    """
    for name in steady:
        if (got := attrgetter(name)(asked)) != (ours := attrgetter(name)(own)):
            words = f"expected a run with {name} = {ours}, as in this client's settings"
            raise PrivacyError(f"{words} (method.{name}), got {got}")
    for name in ("least_pairs", "least_silos"):
        if (got := getattr(asked.basis, name)) < (least := getattr(own.basis, name)):
            words = f"expected a run with basis.{name} = {least} or more, as in this client's settings"
            raise PrivacyError(f"{words} (method.basis.{name}), got {got}")


def open_basis_run(
    settings: ClientSettings,
    task: Task[Any, Any],
    shard: TaskShard,
    place: RunContext,
    clients: int,
    federation: str = "",
    items: CommonItems | None = None,
    over: Statistics | None = None,
) -> BasisRun:
    """Opens the silo's part of a run that sums, before any round. Slow.

    In a silo that fits its models on everything, everything is counted in sums that the silo can take its own part out
    of, such as counts without noise. Others, such as directions, would tell what is judged in them the answers.

    federation: the key of its aggregator. items: the list that the sum is over, where the silos have summed one. over:
    what the sum counts over; all silos must have the same.
    """
    chosen, basis = find_silo_sum(place.method, task.name), place.method.basis
    everything = settings.fit_everything and chosen.everything(place.method)
    whole = shard if task.refitting is None else task.everything(shard)
    counted = whole if everything else shard
    hidden = 0
    if basis.places is not None:  # only sums of shards with items have places
        found = require_list(items, basis.places).place(cast(Shard, counted), basis.places)
        counted, hidden = found.shard, found.hidden
    folder, of_all = basis_folder(settings), chosen.digests(whole, place.method)
    counts_all = of_all.everything or of_all.training
    listed = chosen.digests(counted, place.method).catalogue
    if over is not None and listed != EMPTY_PART_DIGEST:
        listed = hashlib.sha256(f"{listed} {over.digest}".encode()).hexdigest()
    summed = SummedDigests(chosen.digests(shard, place.method).training, listed, counts_all)
    numbers = chosen.count(counted, place.method)
    more: dict[str, Any] = {"federation": federation, "items": items, "hidden": hidden, "over": over}
    more |= {"everything": everything}
    if chosen.complete is not None:
        more["secret"] = run_secret(folder, place.run, federation)
    return BasisRun(place, numbers, folder, clients, summed, **more)


class ClientRun(Protocol):
    """Its methods are slow and belong in a worker thread. See `training_run.TrainingRun` and `basis_run.BasisRun`."""

    part: Part
    place: RunContext
    applied: int
    summed: SummedDigests | None
    """Of what is summed; None of a model in training."""

    @property
    def context(self) -> RoundContext:
        """Of the round that was fitted last."""

    @property
    def received(self) -> Parameters:
        """What came last from the aggregator."""

    @property
    def finished(self) -> bool:
        """Is nothing left to do in this run?"""

    @property
    def shared_digest(self) -> str:
        """sha256 over what could be shared, as it is now."""

    def resume(self, closed: int) -> bool:
        """Go on where an earlier process was in this run; False where there is nothing of it."""

    def begin(self, received: Parameters, number: int) -> None:
        """Take over what the run has after round `number`; 0: where it begins."""

    def missing_round(self, number: int) -> int | None:
        """The round whose parameters are needed before those of round `number`, and are not here; None: no such."""

    def has_trained(self, number: int) -> bool:
        """Has this client trained in the round after the one applied, or might it have before it was restarted?"""

    def fit(self, strategy: Strategy, context: RoundContext, received: Parameters) -> tuple[Parameters, float]:
        """The client's half of a round, and the seconds that it took."""

    def save_fitted(self, number: int) -> None:
        """Keep what round `number` was fitted with, for a process that applies it later."""

    def resume_fitted(self, number: int) -> bool:
        """Be as `save_fitted` left off; False where nothing of that round is kept."""

    def store_received(self, received: Parameters, number: int) -> None:
        """Have the parameters of a missing round at hand."""

    def skip_round(self, received: Parameters, number: int) -> None:
        """Take over what round `number` gave, in which this client had no part."""

    def apply(self, received: Parameters, costs: RoundCosts) -> None:
        """Take over what a round gave, in which it had."""

    def finish(self, failure: str | None = None) -> None:
        """The run is over."""
