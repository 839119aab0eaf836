"""Client as a strategy sees it: operations on named arrays, without torch and data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from shared.method.parameters import Arrays, Parameters

Loss = Literal["", "bpr", "bce"]
"""Loss that a strategy may train with; "": the one that the settings name."""
Penalty = Callable[[Mapping[str, Any], Mapping[str, Any]], Any]
"""(all own, received) named tensors -> scalar added to the loss. Operators only, so that no torch is needed here."""


@dataclass(frozen=True)
class Shrinkage:
    """L1 shrinkage of the named parameters by proximal steps.

    After each step w <- sign(w) max(|w| - rate strength, 0).
    """

    names: tuple[str, ...]
    strength: float


@dataclass(frozen=True)
class Objective:
    """Objective of a round's epochs, and the parameters that it trains.

    penalty: added to the loss. only: prefix of the names of the parameters to train; "": all. bias_aware: widen the
    positives' angles by the popularity margin (Eq. 8, 15), after the warm-up. shrinkage: an L1 norm that is minimised
    besides. taken_negatives: sample negatives only among items that some user of the silo has. rate: multiple of the
    settings' learning rates. group_weights: how much the pairs of the less and of the more active half of the users
    count, with the losses "bpr" and "bce".
    """

    loss: Loss = ""
    penalty: Penalty | None = None
    only: str = ""
    bias_aware: bool = False
    group_weights: tuple[float, float] = (1.0, 1.0)
    shrinkage: Shrinkage | None = None
    taken_negatives: bool = False
    rate: float = 1.0


PLAIN = Objective()


@dataclass(frozen=True)
class FitInput(Parameters):
    """Input of a client's round: the model's parameters, broadcasts and client memory.

    broadcast: tensors that the server sends to every client (`Strategy.broadcasts`).
    memory: tensors that this client kept of its last round (`Strategy.client_memory`).
    Each has all declared tensors, zeros at first.
    """

    broadcast: Arrays = field(default_factory=dict)
    memory: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class FitResult(Parameters):
    """Result of a client's round: parameters to send, and client memory to keep."""

    memory: Arrays = field(default_factory=dict)


class LocalClient(Protocol):
    """Model and data of one silo, behind the operations that strategies use."""

    def load(self, received: Parameters) -> None:
        """Loads the named arrays and keeps them for penalties."""

    def train(self, objective: Objective = PLAIN) -> None:
        """Runs the local epochs of a round."""

    def sum_gradients(self) -> tuple[Arrays, int]:
        """Sums the loss's gradient over all examples, and counts these.

        The gradient is by exchanged parameter.

        Nothing is trained.
        """

    def arrays(self) -> Arrays:
        """Returns every parameter that clients with this model can exchange."""

    def measure(self, name: str) -> tuple[float, ...]:
        """Measures the model or the shard, by a name in training/client_measures.py.

        divergence: rho (Eq. 11), or nothing where the shard's spectrum is too short to be compared. mean_margin: M
        (Eq. 10). losses_by_activity: the mean BPR loss of the less and of the more active half of the users.
        local_steps: how many steps of its optimiser the client makes in a round. signature_low, signature_high: the
        leading direction of features in each basis of the shard's graph, one after the other.
        """

    def generator(self, purpose: str, *, once_a_run: bool = False) -> np.random.Generator:
        """Returns a random generator of this round or run, for noise.

        The same if the round is run again, and unpredictable without the shard.
        """
