"""Client's run: its context, its settings, and its interface for agent and upload."""

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
from shared.strategies.agreement import choose_similarity_floor
from shared.strategies.strategy import Strategy
from shared.sums import find_sum, method_of_part
from shared.sums.sum import EMPTY_PART_DIGEST


@dataclass(frozen=True)
class Silo:
    """Data and state of a silo that the agent works with; they never leave it.

    `interrupt`: ends slow work. `guard`: with differential privacy. `basis_guard`: with noise on the common basis.
    `masking`: in a secure federation. `anchors`: the ones that rho was compared with.
    """

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
        """Key of the aggregator where the silo pins one, else nothing."""
        return "" if self.masking is None else self.masking.aggregator


@dataclass(frozen=True)
class RefreshResult:
    """Result of a refresh.

    `changed`: False if no event was to be absorbed; the shard stays as it is then. waiting: positives that stay in
    the log until the federation's catalogue lists their items. dropped: interactions that would have stayed, and for
    which the log had no room.
    """

    changed: bool
    model: str | None
    erased: int
    waiting: int
    dropped: int


@dataclass(frozen=True)
class RebuildResult:
    """Rebuilt silo, and the function that finishes its refresh.

    `finish` clears the log and returns the result of the refresh. It is slow; where it fails the next refresh does
    it.
    """

    silo: Silo
    finish: Callable[[], RefreshResult]


def basis_folder(settings: ClientSettings) -> Path:
    """Returns the folder that keeps statistics of sums."""
    return settings.state_directory / FOLDER


def build_run_context(settings: ClientSettings, run: str, seed: int, method: MethodSettings) -> RunContext:
    """Builds the context of a run without a common basis."""
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
    """Returns the settings of a run, checked against the silo's own.

    Raises PrivacyError if they would send parameters that this silo has not declared, or reveal more of its sums
    than its own settings.
    """
    agreed = choose_similarity_floor(asked or settings.method, secure=settings.secure)
    strategy = build_strategy(settings.strategy, agreed)
    if part == TRAINING and build_strategy(settings.strategy, settings.method).sums_alone:
        raise PrivacyError("expected a run that sums, because this silo shares sums alone, got one that trains")
    allowed = allowed_declaration(strategy, agreed, settings.policy, secure=settings.secure)
    if allowed.of_part(part) != settings.declaration().of_part(part):
        words = "expected a run of declared parameters alone, got settings that"
        raise PrivacyError(f"{words} would send other parameters than this client has declared")
    if part != TRAINING:
        _require_careful_settings(method_of_part(settings.method, part), agreed, find_sum(agreed).steady)
    return agreed


def _require_careful_settings(own: MethodSettings, asked: MethodSettings, steady: tuple[str, ...]) -> None:
    """Raises PrivacyError for sums that reveal more than with the silo's own settings.

    steady: what must be the same. Sums over the same data with two exponents, for example, weigh users of each degree
    differently: their difference tells of single users, and no rule counts it, because no data have changed.
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

    A silo that fits its models on all data also adds its held-out data to sums from which it can subtract them again,
    such as counts without noise. Other sums, such as directions, leave held-out data out, because models that are
    judged on these data are fitted to the sums.

    federation: the key of its aggregator. items: the list that the sum is over, where the silos have summed one. over:
    what the sum counts over; all silos must have the same.
    """
    chosen, basis = find_silo_sum(place.method, task.name), place.method.basis
    adds_all_data = settings.fit_everything and chosen.may_add_all_data(place.method)
    whole = shard if task.refitting is None else task.include_all_data(shard)
    counted = whole if adds_all_data else shard
    hidden = 0
    if basis.places is not None:  # only sums of shards with items have places
        found = require_list(items, basis.places).place(cast(Shard, counted), basis.places)
        counted, hidden = found.shard, found.hidden
    folder, of_all = basis_folder(settings), chosen.digests(whole, place.method)
    counts_all = of_all.all_data or of_all.training
    listed = chosen.digests(counted, place.method).catalogue
    if over is not None and listed != EMPTY_PART_DIGEST:
        listed = hashlib.sha256(f"{listed} {over.digest}".encode()).hexdigest()
    summed = SummedDigests(chosen.digests(shard, place.method).training, listed, counts_all)
    numbers = chosen.count(counted, place.method)
    more: dict[str, Any] = {"federation": federation, "items": items, "hidden": hidden, "over": over}
    more |= {"adds_all_data": adds_all_data}
    if chosen.complete is not None:
        more["secret"] = run_secret(folder, place.run, federation)
    return BasisRun(place, numbers, folder, clients, summed, **more)


class ClientRun(Protocol):
    """Interface of a run for the agent.

    Its methods are slow and belong in a worker thread. See `training_run.TrainingRun` and `basis_run.BasisRun`.
    """

    part: Part
    place: RunContext
    applied: int
    summed: SummedDigests | None
    """Digests of the data that a sum is over; None in a training run."""

    @property
    def context(self) -> RoundContext:
        """Context of the round that was fitted last."""

    @property
    def received(self) -> Parameters:
        """Latest parameters of the aggregator."""

    @property
    def finished(self) -> bool:
        """True if the run needs no more work."""

    @property
    def shared_digest(self) -> str:
        """sha256 over the current values of what could be shared."""

    def resume(self, closed: int) -> bool:
        """Continues this run of an earlier process; False if it left nothing."""

    def begin(self, received: Parameters, number: int) -> None:
        """Applies the run's parameters after round `number`; 0: its start."""

    def missing_round(self, number: int) -> int | None:
        """Returns a round whose parameters are needed before those of `number`, or None."""

    def has_trained(self, number: int) -> bool:
        """Tells whether this client has trained, or may have, in the next round.

        That is the round after the applied one.
        """

    def fit(self, strategy: Strategy, context: RoundContext, received: Parameters) -> tuple[Parameters, float]:
        """Computes the client's update of a round, and the seconds it took."""

    def save_fitted(self, number: int) -> None:
        """Saves the training of round `number` for a process that applies it later."""

    def resume_fitted(self, number: int) -> bool:
        """Restores what `save_fitted` wrote; False if it is of another round."""

    def store_received(self, received: Parameters, number: int) -> None:
        """Stores the parameters of a missing round."""

    def skip_round(self, received: Parameters, number: int) -> None:
        """Applies a round in which this client had no part."""

    def apply(self, received: Parameters, costs: RoundCosts) -> None:
        """Applies a round in which this client had a part."""

    def finish(self, failure: str | None = None) -> None:
        """Ends the run.

        failure: why it ended early.
        """
