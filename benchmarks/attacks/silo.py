"""Runs of one attacked client in a small federation, with everything that it sends.

Client and strategy are the real ones. The other clients are replayed: they send their updates from a federation of
their own. Given the aggregator's answers, their updates reveal nothing more of the attacked shard, so the attacker
loses nothing. Shapes: R rounds, P shared parameters, K replays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from client_service.data.interactions import Shard
from client_service.training.item_trainer import ItemTrainer
from client_service.training.training_state import RoundContext, TrainingState
from shared.method.anchor import declared_size, draw_anchor
from shared.method.declaration import TensorSpec
from shared.method.graph import Float64
from shared.method.parameters import Arrays, Float32, Parameters, Scalars, State, Update
from shared.method.settings import MethodSettings, method_settings
from shared.method.spectrum import low_spectrum
from shared.method.tensors import initial_parameters
from shared.strategies import build_strategy
from shared.strategies.strategy import Strategy

Release = Callable[[ItemTrainer, Parameters, Parameters], Parameters]
"""(the client, what it received, what it made) -> what leaves. It may remember what left before in the same run."""
Mode = Callable[[np.random.Generator], Release]
"""Makes the release of one run from private randomness."""
SCALARS = ("margin", "rho")
ABSENT = np.nan  # a scalar that is not sent
SILO = "client-1"


@dataclass(frozen=True)
class AttackedRun:
    """Settings that a run's clients and aggregator share."""

    method: MethodSettings
    strategy: Strategy
    rounds: int
    seed: int

    @classmethod
    def from_config(cls, config: dict[str, Any], strategy: str = "lpsfed", **overrides: Any) -> AttackedRun:
        """Returns the run of config.toml, with a strategy and changed settings."""
        method = method_settings(**{**config["method"], **overrides})
        return cls(method, build_strategy(strategy, method), config["rounds"], config["seed"])

    @property
    def specification(self) -> tuple[TensorSpec, ...]:
        """Tensors that each client sends."""
        return self.strategy.declaration(self.method).tensors

    def start_parameters(self, training: ItemTrainer) -> Parameters:
        """Returns the parameters that every client starts with."""
        return Parameters(initial_parameters(self.strategy.tensors(self.method), self.seed, exact=training.exact))

    def round_context(self, number: int) -> RoundContext:
        """Returns the context of round `number`, with the anchor's kernel."""
        kernel = draw_anchor(self.method, declared_size(self.method.anchor), seed=self.seed, number=number)
        return RoundContext(number, self.rounds, self.seed, kernel)


@dataclass(frozen=True, eq=False)
class Transcript:
    """Updates of a client.

    Received and sent (R, P), scalars (R, 2) in the order of SCALARS.
    """

    received: Float32
    sent: Float32
    scalars: Float64


@dataclass(frozen=True, eq=False)
class StartedClient:
    """Client after its first round, from which it can continue in several ways."""

    training: ItemTrainer
    start: Parameters
    update: Parameters
    state: TrainingState


def join_client(shard: Shard, run: AttackedRun) -> ItemTrainer:
    """Creates the trainer of a shard at the beginning of a run."""
    spectrum = low_spectrum(shard.train, run.method.cutoff)
    torch.manual_seed(run.seed)
    training = ItemTrainer(shard, spectrum, run.method, torch.device("cpu"), kind=run.strategy.model)
    training.initialise(run.seed)
    return training


def fit_round(training: ItemTrainer, run: AttackedRun, number: int, received: Parameters) -> Parameters:
    """Runs the client's part of a round and copies its update."""
    training.context = run.round_context(number)
    made = run.strategy.fit_round(training, received)
    return Parameters({name: np.array(value) for name, value in made.arrays.items()}, dict(made.scalars))


def start_client(shard: Shard, run: AttackedRun) -> StartedClient:
    """Runs the first round, which does not depend on the mode."""
    training = join_client(shard, run)
    start = run.start_parameters(training)
    return StartedClient(training, start, fit_round(training, run, 1, start), copy_state(training))


def copy_state(training: ItemTrainer) -> TrainingState:
    """Copies the trainer's state."""
    state = training.state()
    return TrainingState({name: np.array(value) for name, value in state.arrays.items()}, state.scalars, state.fitted)


def play_run(run: AttackedRun, silo: StartedClient, others: Sequence[Transcript], release: Release) -> Transcript:
    """Runs one client through all rounds: it trains, sends its update, and gets its mixture."""
    silo.training.restore(silo.state)
    state, received, rounds = State(silo.start.arrays), silo.start, []
    for number in range(1, run.rounds + 1):
        made = silo.update if number == 1 else fit_round(silo.training, run, number, received)
        sent = release(silo.training, received, made)
        rounds.append((received, sent))
        state, received = answer_round(run, state, sent, [replayed_parameters(run, other, number) for other in others])
    return make_transcript(rounds)


def answer_round(
    run: AttackedRun, state: State, sent: Parameters, others: Sequence[Parameters]
) -> tuple[State, Parameters]:
    """Runs the aggregator's part of a round: the new state, and the client's answer."""
    sendings = enumerate((sent, *others), start=1)
    updates = [Update(f"client-{number}", sending.arrays, sending.scalars) for number, sending in sendings]
    after = run.strategy.aggregate(state, updates)
    return after, run.strategy.personalise(after, updates[0])


def replayed_parameters(run: AttackedRun, other: Transcript, number: int) -> Parameters:
    """Returns the update of another client in that round."""
    scalars = {name: float(v) for name, v in zip(SCALARS, other.scalars[number - 1], strict=True) if not np.isnan(v)}
    return Parameters(split_arrays(other.sent[number - 1], run.specification), scalars)


def play_federation(run: AttackedRun, shards: Sequence[Shard]) -> list[Transcript]:
    """Runs all clients of one federation in the open mode, for replays."""
    clients = [join_client(shard, run) for shard in shards]
    received = [run.start_parameters(client) for client in clients]
    state, rounds = State(received[0].arrays), [[] for _ in clients]  # type: tuple[State, list[list[Any]]]
    for number in range(1, run.rounds + 1):
        made = [fit_round(client, run, number, got) for client, got in zip(clients, received, strict=True)]
        for own, pair in zip(rounds, zip(received, made, strict=True), strict=True):
            own.append(pair)
        updates = [Update(f"client-{n}", update.arrays, update.scalars) for n, update in enumerate(made, start=1)]
        state = run.strategy.aggregate(state, updates)
        received = [run.strategy.personalise(state, update) for update in updates]
    return [make_transcript(own) for own in rounds]


def make_transcript(rounds: Sequence[tuple[Parameters, Parameters]]) -> Transcript:
    """Stacks the received and sent parameters of each round."""
    received, sent = (np.stack([join_arrays(pair[side].arrays) for pair in rounds]) for side in (0, 1))
    return Transcript(received, sent, np.stack([_scalar_vector(pair[1].scalars) for pair in rounds]))


def _scalar_vector(scalars: Scalars) -> Float64:
    return np.array([scalars.get(name, ABSENT) for name in SCALARS], dtype=np.float64)


def join_arrays(arrays: Arrays) -> Float32:
    """Joins all tensors in the order of their names, (P,)."""
    return np.concatenate([np.asarray(arrays[name]).ravel() for name in sorted(arrays)])


def split_arrays(values: NDArray[np.float32], specification: Sequence[TensorSpec]) -> dict[str, Float32]:
    """Splits a vector of all tensors (P,) into tensors by name; inverse of `join_arrays`."""
    ends = np.cumsum([int(np.prod(spec.shape)) for spec in specification])
    parts = np.split(values, ends[:-1])
    return {spec.name: part.reshape(spec.shape) for spec, part in zip(specification, parts, strict=True)}


def release_unchanged(training: ItemTrainer, received: Parameters, made: Parameters) -> Parameters:
    """Releases the update unchanged (open mode)."""
    del training, received
    return made


def open_mode(secret: np.random.Generator) -> Release:
    """Returns the open mode, in which every update leaves unchanged."""
    del secret
    return release_unchanged
