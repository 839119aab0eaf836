"""What the agent and the way out need of a run at this client, whether it trains or sums statistics."""

from __future__ import annotations

from typing import Protocol

from client_service.learning.local import Moment
from client_service.schemas import RoundCosts
from client_service.tasks.task import Place, SummedDigests
from shared.method.declaration import Part
from shared.method.exchanged import Parameters
from shared.strategies.strategy import Strategy


class RunPart(Protocol):
    """Its methods are slow and belong in a worker thread. See `training_run.TrainingRun` and `basis_run.BasisRun`."""

    part: Part
    place: Place
    applied: int
    summed: SummedDigests | None
    """Of what is summed; None of a model in training."""

    @property
    def moment(self) -> Moment:
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

    def trained_in(self, number: int) -> bool:
        """Has this client trained in the round after the one applied, or might it have before it was restarted?"""

    def fit(self, strategy: Strategy, moment: Moment, received: Parameters) -> tuple[Parameters, float]:
        """The client's half of a round, and the seconds that it took."""

    def keep_fitted(self, number: int) -> None:
        """Keep what round `number` was fitted with, for a process that applies it later."""

    def resume_fitted(self, number: int) -> bool:
        """Be as `keep_fitted` left off; False where nothing of that round is kept."""

    def remember(self, received: Parameters, number: int) -> None:
        """Have the parameters of a missing round at hand."""

    def skip_round(self, received: Parameters, number: int) -> None:
        """Take over what round `number` gave, in which this client had no part."""

    def apply(self, received: Parameters, costs: RoundCosts) -> None:
        """Take over what a round gave, in which it had."""

    def finish(self, failure: str | None = None) -> None:
        """The run is over."""
