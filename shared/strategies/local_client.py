"""A client as a strategy sees it: a few verbs on named arrays, without torch and without data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from shared.method.parameters import Arrays, Parameters

Loss = Literal["", "bpr", "bce"]
"""What a strategy may train with; "" is the loss that the settings name."""
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
    """What the epochs of a round minimise, and over which parameters: by default the settings' loss, over all.

    penalty: added to the loss. only: train just the parameters whose name starts so. bias_aware: widen the positives'
    angles by the popularity margin (Eq. 8, 15), after the warm-up. shrinkage: an L1 norm that is minimised besides.
    rate: multiple of the settings' learning rates. group_weights: how much the pairs of the less and of
    the more active half of the users count, with the losses "bpr" and "bce".
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
    """What a client begins a round with: the model's parameters, and tensors that no model holds.

    broadcast: what the server sends to every client (`Strategy.broadcasts`). memory: what this client kept of its last
    round (`Strategy.client_memory`). Each has all declared tensors, zeros at first.
    """

    broadcast: Arrays = field(default_factory=dict)
    memory: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class FitResult(Parameters):
    """What a client sends after its training, and the memory that it keeps for its next round, which never leaves."""

    memory: Arrays = field(default_factory=dict)


class LocalClient(Protocol):
    """One silo's model and data behind the verbs that strategies are made of."""

    def load(self, received: Parameters) -> None:
        """Take over the named arrays and remember them for penalties."""

    def train(self, objective: Objective = PLAIN) -> None:
        """Run the run's local epochs."""

    def sum_gradients(self) -> tuple[Arrays, int]:
        """Sums the loss's gradient over all examples, and counts these.

        The gradient is by exchanged parameter.

        Nothing is trained.
        """

    def arrays(self) -> Arrays:
        """Every parameter that clients with this model can exchange, as it is now."""

    def measure(self, name: str) -> tuple[float, ...]:
        """Numbers that describe the model or the shard, by the client's registry (training/client_measures.py).

        divergence: rho (Eq. 11), or nothing where the shard's spectrum is too short to be compared. mean_margin: M
        (Eq. 10). losses_by_activity: the mean BPR loss of the less and of the more active half of the users.
        local_steps: how many steps of its optimiser the client makes in a round. signature_low, signature_high: the
        leading direction of features in each basis of the shard's graph, one after the other.
        """

    def generator(self, purpose: str, *, once_a_run: bool = False) -> np.random.Generator:
        """Random numbers of this round, or of the whole run, for noise on what leaves: the same if the round is run
        again, and not to be guessed by anybody who does not have the shard."""
