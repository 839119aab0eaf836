"""The optimisers of local training compute what torch's do, and import no compiler."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch.optim import SGD, Adam, Optimizer, RMSprop

from client_service.training.optimisers import make_optimiser

THEIRS: dict[str, Callable[..., Optimizer]] = {"adam": partial(Adam, fused=True), "sgd": SGD, "rmsprop": RMSprop}
STEP = """
import sys, torch
from client_service.training.optimisers import OPTIMISERS, make_optimiser
layer = torch.nn.Linear(3, 2)
for kind in OPTIMISERS:
    optimiser = make_optimiser(kind, [{"params": list(layer.parameters()), "lr": .1}])
    optimiser.zero_grad()
    layer(torch.ones(1, 3)).sum().backward()
    optimiser.step()
    optimiser.load_state_dict(optimiser.state_dict())
assert "torch._dynamo" not in sys.modules, "the compiler has been imported"
"""


def train(optimiser: Optimizer, layer: torch.nn.Linear, steps: int) -> None:
    for number in range(steps):
        optimiser.zero_grad()
        layer(torch.full((1, 3), float(number + 1))).square().sum().backward()
        optimiser.step()


@pytest.mark.parametrize("kind", THEIRS)
def test_an_optimiser_trains_as_torchs_own_with_decay_and_after_its_state_is_restored(kind: str) -> None:
    trained = []
    for make in (partial(make_optimiser, kind), THEIRS[kind]):
        torch.manual_seed(3)
        layer = torch.nn.Linear(3, 2)
        groups = [{"params": [layer.weight], "lr": 0.01, "weight_decay": 0.1}, {"params": [layer.bias], "lr": 0.02}]
        first = make([dict(group) for group in groups])
        train(first, layer, steps=4)
        second = make([dict(group) for group in groups])
        second.load_state_dict(first.state_dict())
        train(second, layer, steps=4)
        trained.append(torch.cat([layer.weight.detach().ravel(), layer.bias.detach()]))
    assert torch.equal(*trained)


def test_training_imports_no_compiler() -> None:
    done = subprocess.run([sys.executable, "-c", STEP], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
