"""Silo of a run without network: the client service's computation between two messages.

It trains with `client_service.federation.training_run`, the class that the service's agent uses too, and its updates
pass the service's gate for form and declaration. It has no ledger, no signatures and no boundary.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from client_service.federation.client_run import (
    ClientRun,
    basis_folder,
    build_run_context,
    check_method,
    open_basis_run,
)
from client_service.federation.messages import QualityOut, RoundCosts, StatusOut
from client_service.federation.run_records import load_quality
from client_service.federation.training_run import TrainingRun
from client_service.runtime.device import choose_device
from client_service.serving.model_server import ModelServer
from client_service.settings import ClientSettings
from client_service.sums.storage import complete_shard, load_basis, load_basis_head
from client_service.tasks import task_named
from client_service.training.training_state import RoundContext
from shared.errors import DataError, PrivacyError
from shared.message import Message
from shared.method.anchor import declared_size, draw_anchor
from shared.method.declaration import TRAINING
from shared.method.graph import Float64
from shared.protocol.gate import pass_gate
from shared.protocol.schemas import RunIn
from shared.protocol.wire import decode_body
from shared.strategies import strategy_of_part


@dataclass(frozen=True)
class RunTerms:
    """Run as a silo knows it: its name and the operator's request.

    The request's `basis` names an earlier run.
    """

    run: str
    request: RunIn


class FittedUpdate(Message):
    """Update of a round: the bytes of its body, its scalars, the seconds of training."""

    round: int
    size: int
    scalars: dict[str, float]
    seconds: float


class SiloRun:
    """Silo and its current run.

    The methods are called in the order begin, (fit, apply) for each round, finish.
    """

    def __init__(self, settings: ClientSettings) -> None:
        """Opens the silo.

        Raises DataError for an unusable shard, SettingsError for a device that the machine lacks, PrivacyError for a
        silo that demands masks or noise, which are not added here.
        """
        if settings.secure or settings.privacy.is_on:
            raise PrivacyError(
                "expected a silo without secure and privacy settings, which only the services apply, got one with them"
            )
        self._settings, self._task = settings, task_named(settings.task)
        self._device, self._device_reason = choose_device(settings.device)
        self._shard = self._task.read(settings)
        self._answers = ModelServer()  # it answers no requests here
        self._phase, self._applied = "starting", 0
        self._terms: RunTerms | None = None
        self._part: ClientRun | None = None
        self._sent: FittedUpdate | None = None

    def begin(self, terms: RunTerms, start: bytes, closed: int) -> int:
        """Begins or resumes a run of which `closed` rounds are aggregated.

        Returns the last round that is applied here.
        """
        self._terms, self._sent, self._part = terms, None, None
        if self._has_finished(terms):
            self._phase, self._applied = "finished", terms.request.rounds
            return self._applied
        part = self._open(terms)
        if not part.resume(closed):
            part.begin(part.received if part.part != TRAINING else decode_body(start)[1], 0)
        self._part, self._phase, self._applied = part, "waiting", part.applied
        return part.applied

    def fit(self, number: int) -> bytes:
        """Computes this silo's update of a round, as the body that the service would send."""
        part, terms = self._running()
        strategy = strategy_of_part(part.part, self._settings.strategy, part.place.method)
        anchor = self._anchor(terms.request, number) if strategy.spectral_scalar else None
        context = RoundContext(number, terms.request.rounds, terms.request.seed, anchor)
        update, seconds = part.fit(strategy, context, part.received)
        body = pass_gate(self._settings.declaration().of_part(part.part), update)
        self._sent = FittedUpdate(round=number, size=len(body), scalars=dict(update.scalars), seconds=seconds)
        return body

    def save_fitted(self, number: int) -> FittedUpdate:
        """Saves a fitted round for another process, which needs the returned value."""
        assert self._sent is not None, "expected a round that was fitted"
        self._running()[0].save_fitted(number)
        return self._sent

    def resume_fitted(self, sent: FittedUpdate) -> None:
        """Resumes after `save_fitted`; raises DataError if nothing of that round is stored."""
        if not self._running()[0].resume_fitted(sent.round):
            raise DataError(f"{self._settings.name}: expected the stored training of round {sent.round}, got none")
        self._sent = sent

    def apply(self, number: int, answer: bytes) -> int:
        """Applies the round's answer, evaluates it and saves it; returns the last round applied."""
        part, _ = self._running()
        sent = self._sent
        assert sent is not None, "expected a round that was fitted"
        costs = RoundCosts(
            round=number,
            scalars=sent.scalars,
            train_seconds=sent.seconds,
            bytes_up=sent.size,
            bytes_down=len(answer),
        )
        part.apply(decode_body(answer)[1], costs)
        self._sent, self._applied = None, part.applied
        return part.applied

    def finish(self) -> None:
        """Tests the best model, or stores the common basis."""
        if self._part is not None:
            self._part.finish()
            self._part, self._phase = None, "finished"

    @property
    def quality(self) -> QualityOut:
        """Quality of the silo's last training run."""
        return load_quality(self._settings.models_directory, self._settings.name)

    @property
    def status(self) -> StatusOut:
        """Status of the silo, as its service would return it."""
        part, served = self._part, self._answers.served
        return StatusOut(
            client=self._settings.name,
            phase=self._phase,
            run=None if self._terms is None else self._terms.run,
            round=self._applied,
            rounds=0 if self._terms is None else self._terms.request.rounds,
            model=None if served is None else served.version,
            shared_digest=self.quality.shared_digest if part is None else part.shared_digest,
            device=str(self._device),
            device_reason=self._device_reason,
        )

    def _open(self, terms: RunTerms) -> ClientRun:
        settings, request = self._settings, terms.request
        method = check_method(settings, request.method, request.part)
        place = build_run_context(settings, terms.run, request.seed, method)
        shard = complete_shard(basis_folder(settings), settings.method, self._shard)
        if request.part != TRAINING:
            return open_basis_run(settings, self._task, shard, place, request.clients)
        if request.basis is not None:
            head = load_basis_head(basis_folder(settings))
            basis = None if head is None else load_basis(basis_folder(settings), head.digest)
            if head is None or head.run != request.basis or basis is None:
                raise DataError(f"{settings.name}: expected the stored common basis of {request.basis}, got none")
            place = replace(place, basis=basis)
        return TrainingRun(place, self._task, shard, self._answers, self._device)

    def _has_finished(self, terms: RunTerms) -> bool:
        if terms.request.part != TRAINING:
            head = load_basis_head(basis_folder(self._settings), terms.request.part)
            return head is not None and head.run == terms.run
        return self.quality.run == terms.run and self.quality.finished

    def _running(self) -> tuple[ClientRun, RunTerms]:
        assert self._part is not None and self._terms is not None, "expected a run that has begun"
        return self._part, self._terms

    def _anchor(self, request: RunIn, number: int) -> Float64:
        """Draws the kernel K^R of the round, as every client does."""
        size = declared_size(request.method.anchor)
        return draw_anchor(request.method, size, seed=request.seed, number=number)
