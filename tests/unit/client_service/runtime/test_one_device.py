"""A step of training where the model lies on another device than the CPU: no tensor is left behind.

The other device is torch's `meta`, which has shapes and no numbers, and is in every build. torch itself lets some
operations on it take a tensor of the CPU, which a GPU would refuse; `OneDevice` refuses them all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from client_service.data.interactions import Shard
from client_service.training.item_trainer import ItemTrainer, group_parameters, pair_loss
from client_service.training.margins import Margins
from client_service.training.optimisers import make_optimiser
from client_service.training.sampling import Batch
from client_service.training.spectrum_cache import cached_spectrum
from shared.method.settings import MethodSettings
from shared.method.tensors import EXCHANGES

ELSEWHERE = torch.device("meta")
MOVES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
STEP = {"optimiser": "rmsprop"}  # the fused Adam knows real devices alone


class OneDevice(TorchDispatchMode):
    """Refuses an operation on tensors of two devices, but for a move, and for a single number of the CPU."""

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        del types
        named = kwargs or {}
        tensors = [one for one in tree_leaves((args, dict(named))) if isinstance(one, Tensor)]
        places = {one.device for one in tensors if one.dim() > 0 or one.device == ELSEWHERE}
        if len(places) > 1 and func not in MOVES:
            raise RuntimeError(f"expected tensors of one device, got {sorted(map(str, places))} in {func}")
        return func(*args, **named)


@pytest.fixture
def begun(planted: Shard, small: MethodSettings) -> Callable[[str], ItemTrainer]:
    """A model of a kind, on the CPU."""

    def begin(kind: str) -> ItemTrainer:
        method, shard = small.model_copy(update=STEP), planted
        if not EXCHANGES[kind].starts_at_filter and kind != "ngcf":
            method, shard = method.model_copy(update={"catalogue": 40}), replace(planted, places=np.arange(40))
        spectrum = cached_spectrum(shard, method.cutoff, None)
        return ItemTrainer(shard, spectrum, method, torch.device("cpu"), kind=kind)

    return begin


def first_batch(training: ItemTrainer) -> Batch:
    """The first of an epoch, moved as `PairSampler` moves it."""
    drawn = next(iter(training.batches.epoch(torch.Generator().manual_seed(0))))
    return Batch(*(getattr(drawn, field.name).to(ELSEWHERE) for field in fields(Batch)))


@pytest.mark.parametrize("margin", [False, True])
@pytest.mark.parametrize("loss", ["bc", "bpr", "bce"])
@pytest.mark.parametrize("kind", [name for name, one in EXCHANGES.items() if one.task == "items"])
def test_a_step_stays_on_the_model_s_device(
    begun: Callable[[str], ItemTrainer], kind: str, loss: str, margin: bool
) -> None:
    training = begun(kind)
    batch, method = first_batch(training), training.method
    model, tables = training.model.to(ELSEWHERE), training.tables.to(ELSEWHERE)
    margins = Margins(tables, 0.1, method.refinement, None, method.margin_reading) if margin else None
    with OneDevice():
        optimiser = make_optimiser(method.optimiser, group_parameters(model, method))
        value, _ = pair_loss(model, batch, method, margins, loss)
        optimiser.zero_grad()
        value.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        model.encoder.pull_to_start(0.1)
    assert value.device == ELSEWHERE
    assert {one.device for one in (*model.parameters(), *model.buffers())} == {ELSEWHERE}
    assert {one.grad.device for one in model.parameters() if one.grad is not None} == {ELSEWHERE}


def test_a_constant_that_stays_behind_is_found(begun: Callable[[str], ItemTrainer]) -> None:
    """As an attribute that is no buffer does: `to` does not know it."""
    training = begun("lgcn")
    batch, left = first_batch(training), torch.ones(training.method.width, 4)
    model = training.model.to(ELSEWHERE)
    scores = model.scores

    def with_constant(*given: Any, **more: Any) -> tuple[Tensor, Tensor]:
        positive, negatives = scores(*given, **more)
        return positive + (model.encoder.embedding[:1, : len(left)] @ left).sum(), negatives

    model.scores = with_constant  # type: ignore[method-assign]
    with OneDevice(), pytest.raises(RuntimeError, match=r"expected tensors of one device, got .'cpu', 'meta'."):
        pair_loss(model, batch, training.method, None)
