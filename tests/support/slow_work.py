"""Work of a silo that a test holds up: the model of a refresh, and the training of one client."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import pytest

from client_service.federation.training_run import TrainingRun
from client_service.refresh.rebuild import ModelRenewal
from tests.support.questions import LONGEST_SECONDS


class Held(NamedTuple):
    """`begun` is set once the work has begun; it goes on once `let` is."""

    begun: threading.Event
    let: threading.Event


def hold_renewals(monkeypatch: pytest.MonkeyPatch) -> Held:
    """A refresh has taken the log and waits before it computes its model."""
    held, renew = Held(threading.Event(), threading.Event()), ModelRenewal.renew

    def renew_when_let(*args: Any, **chosen: Any) -> Any:
        held.begun.set()
        assert held.let.wait(LONGEST_SECONDS)
        return renew(*args, **chosen)

    monkeypatch.setattr(ModelRenewal, "renew", renew_when_let)
    return held


def train_for_long(monkeypatch: pytest.MonkeyPatch, client: str) -> None:
    """The client's first training goes on until it is interrupted."""
    fit, begun = TrainingRun.fit, list[str]()

    def fit_for_long(part: Any, *given: Any) -> Any:
        if part.place.client == client:
            begun.append(client)
            if len(begun) == 1:
                part._training.interrupt.wait(LONGEST_SECONDS)
        return fit(part, *given)

    monkeypatch.setattr(TrainingRun, "fit", fit_for_long)
