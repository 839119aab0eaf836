"""FedSGD: clients send gradients over all examples, and the server makes Adam's step.

McMahan, Moore, Ramage, Hampson, Aguera y Arcas. AISTATS 2017. arXiv 1602.05629: FedAvg with one step on all examples,
where the step can be the server's. It is central training on all clients' examples, whatever optimiser makes the step.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
from pydantic import Field

from shared.method.declaration import TensorSpec
from shared.method.graph import Float64
from shared.method.parameters import Array, Parameters, State
from shared.method.settings import MethodSettings
from shared.strategies.local_client import FitInput, LocalClient
from shared.strategies.server_optimisers import FIRST, SECOND
from shared.strategies.strategy import OwnSettings, Strategy, all_exchanged, read_strategy_settings

EXAMPLES = TensorSpec(name="examples", shape=(1,))
UNIT = 1024.0  # divisor of sent gradients, so that sums over a million examples can be masked
STEPS = "steps"
EPSILON = 1e-8


class FedSGDSettings(OwnSettings):
    """Settings of Adam.

    beta1, beta2: how much of each moment lasts a step. decay: pull of all parameters toward 0 (L2).
    """

    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.999, ge=0, lt=1)
    decay: float = Field(0.0, ge=0, le=1)


def send_gradients(client: LocalClient, received: FitInput) -> Parameters:
    """Sends the summed gradient and the count of examples, both in units of UNIT."""
    client.load(received)
    gradients, examples = client.sum_gradients()
    scaled = {name: (value / UNIT).astype(np.float32) for name, value in gradients.items()}
    return Parameters({**scaled, EXAMPLES.name: np.array([examples / UNIT], dtype=np.float32)})


def step_by_gradients(before: State, centre: State, *, method: MethodSettings, own: FedSGDSettings) -> State:
    """Makes Adam's step by the mean gradient over all clients' examples.

    Bias corrections of both moments as in Kingma and Ba 2015.

    The centre is a mean over clients of sums over examples, and so is the reported number: their ratio is the mean over
    examples, whichever client has them. Without an example nothing changes.
    """
    examples = float(np.asarray(centre.reports[EXAMPLES.name])[0])
    steps = 1.0 + float(np.asarray(before.memory[STEPS])[0]) if STEPS in before.memory else 1.0
    if examples <= 0.0:
        return replace(before, latest=centre.latest, scalars=centre.scalars)
    arrays: dict[str, Array] = {}
    memory: dict[str, Array] = {STEPS: np.array([steps], dtype=np.float32)}
    for name in sorted(before.arrays):
        old = np.asarray(before.arrays[name], dtype=np.float64)
        gradient = np.asarray(centre.arrays[name], dtype=np.float64) / examples + own.decay * old
        first = own.beta1 * _recall(before, FIRST + name, old) + (1 - own.beta1) * gradient
        second = own.beta2 * _recall(before, SECOND + name, old) + (1 - own.beta2) * np.square(gradient)
        size = np.sqrt(second / (1 - own.beta2**steps)) + EPSILON
        moved = old - choose_learning_rate(name, method) * first / (1 - own.beta1**steps) / size
        arrays[name] = moved.astype(np.float32)
        memory |= {FIRST + name: first.astype(np.float32), SECOND + name: second.astype(np.float32)}
    return replace(centre, arrays=arrays, memory=memory)


def choose_learning_rate(name: str, method: MethodSettings) -> float:
    """Returns a tensor's learning rate: filter coefficients may have their own."""
    of_filter = method.nodes.filter_learning_rate
    return of_filter if of_filter is not None and name.startswith("filter.") else method.learning_rate


def _recall(before: State, name: str, like: Float64) -> Float64:
    return np.asarray(before.memory[name], dtype=np.float64) if name in before.memory else np.zeros_like(like)


def fedsgd(method: MethodSettings) -> Strategy:
    """Builds FedSGD: gradients of all exchanged tensors are summed.

    The count of examples goes up too, and no scalar leaves.
    """
    own = read_strategy_settings(FedSGDSettings, method)
    return Strategy(
        "fedsgd",
        shared=all_exchanged(method),
        reports=(EXAMPLES,),
        shard_statistics=frozenset({"counts"}),
        reparametrised=True,
        fit=send_gradients,
        step=partial(step_by_gradients, method=method, own=own),
        settings=own,
    )
