"""Two shards that differ in one target -> whether an attacker who knows all the rest can distinguish them.

This attacker knows the shard but for the target, the run's settings and its seed, and trains both worlds itself.
Without noise what leaves is a function of these, so that it compares. With Gaussian noise no test beats the likelihood
ratio (Neyman and Pearson), whose AUC follows from the distance of the two worlds in deviations of the noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from benchmarks.attacks.noise import PARTS, private_mode
from benchmarks.attacks.population import Draw, Population, make_shard
from benchmarks.attacks.silo import (
    AttackedRun,
    BegunClient,
    Transcript,
    answer_round,
    begin_client,
    fit_round,
    join_arrays,
    replayed_parameters,
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

    without: BegunClient
    with_it: BegunClient


@dataclass(frozen=True)
class ChannelResult:
    """How many of the targets one channel of what leaves reveals for certain."""

    channel: str
    told: int
    targets: int


def complete_draw(population: Population, draw: Draw) -> Draw:
    """The draw with every target in."""
    users = draw.users.copy()
    users[population.coins] = True
    return Draw(users, np.ones_like(draw.pairs), np.ones_like(draw.rare))


def draw_without(population: Population, draw: Draw, target: Target) -> Draw:
    """The draw less one target."""
    users, pairs = draw.users.copy(), draw.pairs.copy()
    if target.question == "user":
        users[population.coins[target.place]] = False
    else:
        pairs[target.place] = False
    return replace(draw, users=users, pairs=pairs)


def compare_worlds(
    population: Population, run: AttackedRun, draw: Draw, targets: Sequence[Target]
) -> list[ChannelResult]:
    """The attacker trains the first round of both worlds, and looks whether they send the same. A channel that is not
    the same every time the same world is trained tells nothing for certain, and counts as telling none."""
    everything = complete_draw(population, draw)
    present, again = (begin_client(make_shard(population, everything).shard, run).update for _ in range(2))
    absent = [
        begin_client(make_shard(population, draw_without(population, everything, target)).shard, run).update
        for target in targets
    ]
    results = []
    for channel in CHANNELS:
        certain = _is_same(channel, present, again)
        told = sum(certain and not _is_same(channel, present, update) for update in absent)
        results.append(ChannelResult(channel, told, len(targets)))
    return results


def _is_same(channel: str, first: Parameters, second: Parameters) -> bool:
    """Whether two updates are equal to the bit in one channel."""
    if channel == "tensors":
        return bool(np.array_equal(join_arrays(first.arrays), join_arrays(second.arrays)))
    return first.scalars.get(channel) == second.scalars.get(channel)


def make_pair(population: Population, run: AttackedRun, draw: Draw, target: Target) -> Pair:
    """The first round with the target and without it, every other target present."""
    present = complete_draw(population, draw)
    draws = (draw_without(population, present, target), present)
    return Pair(*(begin_client(make_shard(population, world).shard, run) for world in draws))


def squared_distance(
    run: AttackedRun, pair: Pair, others: Sequence[Transcript], settings: PrivacySettings, secret: np.random.Generator
) -> float:
    """How far apart the two worlds are in one run with the target in, in squared deviations of the noise.

    In each round both worlds are trained from what was handed out; what the noise then hides is the difference of
    what they would release without it. Scalars are put back into their range afterwards, which can only hide more.
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
    """The difference of one part, clipped as the client does it, over the deviation of its noise."""
    deviation = settings.noise(part)[1] * 2.0 * settings.ball(part)[1]
    if part == TENSORS:
        before = join_arrays(received.arrays).astype(np.float64)
        changes = [
            clip_change(join_arrays(world.arrays) - before, settings.ball(part)[1], "gaussian") for world in worlds
        ]
        return float(np.linalg.norm(changes[0] - changes[1])) / deviation
    values = [float(np.clip(world.scalars[part], *settings.limits(part))) for world in worlds]
    return abs(values[0] - values[1]) / deviation


def _round_update(run: AttackedRun, client: BegunClient, number: int, received: Parameters) -> Parameters:
    return client.update if number == 1 else fit_round(client.training, run, number, received)
