"""Test whether an attacker who knows all but one target can distinguish its presence.

This attacker knows the rest of the shard, the run's settings and its seed, and trains both worlds itself. Without
noise the updates are a function of these, so it compares them. With Gaussian noise no test beats the likelihood ratio
(Neyman and Pearson), whose AUC follows from the distance of the two worlds in deviations of the noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.attacks.noise import PARTS, private_mode
from benchmarks.attacks.population import Draw, Population, make_shard
from benchmarks.attacks.silo import (
    AttackedRun,
    StartedClient,
    Transcript,
    answer_round,
    fit_round,
    join_arrays,
    replayed_parameters,
    start_client,
)
from client_service.privacy.mechanism import clip_change
from client_service.privacy.settings import TENSORS, PrivacySettings
from shared.method.parameters import Parameters, State

CHANNELS = ("tensors", "margin", "rho")


@dataclass(frozen=True)
class Target:
    """One user, or one host's pair: its place among the population's coins or hosts."""

    question: str
    place: int


@dataclass(frozen=True, eq=False)
class Pair:
    """The same silo without and with the target, after the first round."""

    without: StartedClient
    with_it: StartedClient


@dataclass(frozen=True)
class ChannelResult:
    """Number of targets that one channel reveals for certain."""

    channel: str
    told: int
    targets: int


def complete_draw(population: Population, draw: Draw) -> Draw:
    """Returns the draw with every target in."""
    users = draw.users.copy()
    users[population.coins] = True
    return Draw(users, np.ones_like(draw.pairs), np.ones_like(draw.rare))


def remove_target(population: Population, draw: Draw, target: Target) -> Draw:
    """Returns the draw without one target."""
    users, pairs = draw.users.copy(), draw.pairs.copy()
    if target.question == "user":
        users[population.coins[target.place]] = False
    else:
        pairs[target.place] = False
    return replace(draw, users=users, pairs=pairs)


def compare_worlds(
    population: Population, run: AttackedRun, draw: Draw, targets: Sequence[Target]
) -> list[ChannelResult]:
    """Trains the first round of both worlds and counts different updates by channel.

    A channel that differs between two trainings of the same world reveals nothing for certain, and counts as none.
    """
    everything = complete_draw(population, draw)
    present, again = (start_client(make_shard(population, everything).shard, run).update for _ in range(2))
    absent = [
        start_client(make_shard(population, remove_target(population, everything, target)).shard, run).update
        for target in targets
    ]
    results = []
    for channel in CHANNELS:
        certain = _is_same(channel, present, again)
        told = sum(certain and not _is_same(channel, present, update) for update in absent)
        results.append(ChannelResult(channel, told, len(targets)))
    return results


def _is_same(channel: str, first: Parameters, second: Parameters) -> bool:
    """Tells whether two updates are equal to the bit in one channel."""
    if channel == "tensors":
        return bool(np.array_equal(join_arrays(first.arrays), join_arrays(second.arrays)))
    return first.scalars.get(channel) == second.scalars.get(channel)


def make_pair(population: Population, run: AttackedRun, draw: Draw, target: Target) -> Pair:
    """Trains the first round with and without the target, with every other target present."""
    present = complete_draw(population, draw)
    draws = (remove_target(population, present, target), present)
    return Pair(*(start_client(make_shard(population, world).shard, run) for world in draws))


def squared_distance(
    run: AttackedRun, pair: Pair, others: Sequence[Transcript], settings: PrivacySettings, secret: np.random.Generator
) -> float:
    """Computes the squared distance of two worlds over a run, in deviations of the noise.

    In each round both worlds are trained from the aggregator's answer; the noise then hides the difference of their
    releases. Scalars are clipped to their range afterwards, which can only hide more.
    """
    for world in (pair.with_it, pair.without):
        world.training.restore(world.state)
    release = private_mode(settings)(secret)
    state, received, total = State(pair.with_it.start.arrays), pair.with_it.start, 0.0
    for number in range(1, run.rounds + 1):
        present, absent = (_round_update(run, world, number, received) for world in (pair.with_it, pair.without))
        parts = PARTS if number == 1 else PARTS[:-1]  # rho is drawn once
        total += sum(_part_distance(part, received, (present, absent), settings) ** 2 for part in parts)
        sent = release(pair.with_it.training, received, present)
        state, received = answer_round(run, state, sent, [replayed_parameters(run, other, number) for other in others])
    return total


def _part_distance(
    part: str, received: Parameters, worlds: tuple[Parameters, Parameters], settings: PrivacySettings
) -> float:
    """Computes the clipped difference of one part over the deviation of its noise."""
    deviation = settings.noise(part)[1] * 2.0 * settings.ball(part)[1]
    if part == TENSORS:
        before = join_arrays(received.arrays).astype(np.float64)
        changes = [
            clip_change(join_arrays(world.arrays) - before, settings.ball(part)[1], "gaussian") for world in worlds
        ]
        return float(np.linalg.norm(changes[0] - changes[1])) / deviation
    values = [float(np.clip(world.scalars[part], *settings.limits(part))) for world in worlds]
    return abs(values[0] - values[1]) / deviation


def _round_update(run: AttackedRun, client: StartedClient, number: int, received: Parameters) -> Parameters:
    return client.update if number == 1 else fit_round(client.training, run, number, received)
