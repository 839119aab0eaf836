"""Slow work looks at the interrupt between its steps, ends where it finds it set, and is otherwise what it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from client_service.data.interaction_files import load_shard
from client_service.data.interactions import Shard
from client_service.evaluation import ranking
from client_service.federation.messages import RoundCosts
from client_service.federation.training_run import TrainingRun
from client_service.runtime.interruption import Interrupt, Interrupted
from client_service.serving.model_server import ModelServer
from client_service.tasks.items import ITEMS
from client_service.tasks.task import RunContext
from client_service.training import margins
from client_service.training.item_trainer import ItemTrainer
from client_service.training.training_state import RoundContext
from shared.errors import FederationError
from shared.method.parameters import Parameters
from shared.method.settings import MethodSettings
from shared.method.spectrum import low_spectrum
from shared.method.tensors import initial_parameters, mlp_specification
from shared.strategies import build_strategy
from shared.strategies.local_client import Objective
from tests.support.given import Silos

CPU = torch.device("cpu")
METHOD = MethodSettings(width=4, layers=1, cutoff=8, batch_size=64, negatives=8, local_epochs=3, start="random")
BATCHES = 4  # an epoch of the planted 240 pairs


class Counted(Interrupt):
    """Counts the looks, and is set at the last of so many."""

    def __init__(self, last: int | None = None) -> None:
        super().__init__()
        self.looks, self.last = 0, last

    def check(self) -> None:
        self.looks += 1
        if self.looks == self.last:
            self.set()
        super().check()


def client_of(shard: Shard, interrupt: Interrupt, **changes: Any) -> ItemTrainer:
    method = METHOD.model_copy(update=changes)
    found = ItemTrainer(shard, low_spectrum(shard.train, method.cutoff), method, CPU, interrupt=interrupt)
    found.context = RoundContext(round=3, rounds=9, seed=0)
    return found


def test_it_lets_everything_pass_until_it_is_set() -> None:
    interrupt, done = Interrupt(), []
    double = interrupt.check_before(lambda x: 2 * x)
    assert double(4) == 8 and list(interrupt.check_each("ab")) == ["a", "b"]
    with pytest.raises(Interrupted):
        for step in interrupt.check_each(range(5)):
            done.append(step)
            if step == 2:
                interrupt.set()
    assert done == [0, 1, 2]
    for ended in (interrupt.check, lambda: double(4), lambda: list(interrupt.check_each("ab"))):
        with pytest.raises(Interrupted):
            ended()


def test_to_be_interrupted_is_no_error_that_somebody_tries_again() -> None:
    assert not issubclass(Interrupted, FederationError)


def test_training_looks_once_a_batch_and_ends_in_the_middle_of_an_epoch(planted: Shard) -> None:
    through, cut = Counted(), Counted(last=BATCHES + 2)
    client_of(planted, through).train()
    assert through.looks == METHOD.local_epochs * BATCHES
    client = client_of(planted, cut)
    with pytest.raises(Interrupted):
        client.train()
    assert cut.looks == BATCHES + 2


def test_the_tables_look_once_a_step(planted: Shard) -> None:
    through, cut = Counted(), Counted(last=7)
    client = client_of(planted, through, warmup_trains="tables")
    client.context = RoundContext(round=1, rounds=9, seed=0)
    client.train(Objective(bias_aware=True))
    assert through.looks == client.figures.table_steps > 0
    with pytest.raises(Interrupted):
        client_of(planted, cut).train(Objective(bias_aware=True))
    assert cut.looks == 7


def test_the_mean_margin_looks_once_a_block_of_users(planted: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(margins, "BLOCK_PAIRS", 10 * 40)
    through, cut = Counted(), Counted(last=3)
    client_of(planted, through).measure("mean_margin")
    assert through.looks == 4
    with pytest.raises(Interrupted):
        client_of(planted, cut).measure("mean_margin")
    assert cut.looks == 3


def test_the_choice_of_the_start_looks_once_a_block_of_users(planted: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "CHUNK", 10)
    through, cut = Counted(), Counted(last=6)
    client_of(planted, through, start="exact", fusion=False)
    assert through.looks == 4 * 2  # blocks of users; cut-offs and ridges in one pass, all else in another
    with pytest.raises(Interrupted):
        client_of(planted, cut, start="exact", fusion=False)
    assert 6 <= cut.looks <= 8  # other threads may have looked at the same time


def test_the_choice_of_the_fusion_looks_once_a_block_of_users(planted: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "CHUNK", 10)
    through = Counted()
    client_of(planted, through, start="exact")
    scored = 1 + 2 + 5 + 1 + 2  # all ridges together, weightings, ridges of EASE, the frequency, EDLAE and RP3beta
    judged = 3 + 2 + 5  # each ridge and each weighting by itself
    searches = (4 + 7) + 1  # all loudnesses of a part at once: four parts from the base score, seven from usual weights
    single = 1 + 7  # the sum and each of the seven parts by itself
    assert through.looks == 4 * 2 + 4 * (scored + judged + searches + single)


@pytest.fixture
def part(silos: Silos, small: MethodSettings, tmp_path: Path) -> Callable[[Interrupt], TrainingRun]:
    """A training run that has just begun, with this interrupt."""
    shard = load_shard(silos(1)[0])

    def build(interrupt: Interrupt) -> TrainingRun:
        place = RunContext("client-1", "run-1", 0, small, tmp_path / "model")
        found = TrainingRun(place, ITEMS, shard, ModelServer(), CPU, interrupt)
        found.begin(received(small), 0)
        return found

    return build


def test_the_closed_form_model_is_served_before_anything_is_trained(
    part: Callable[[Interrupt], TrainingRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ItemTrainer, "train", None)  # calling it would now fail
    here = part(Interrupt())
    served = here._best._answers.served
    assert served is not None and served.version == "run-1.0" and len(served.ranker.fusion.parts) > 0
    assert [judged.round for judged in here.quality.rounds] == [0]


def received(method: MethodSettings) -> Parameters:
    return Parameters(initial_parameters(mlp_specification(method), 1, exact=False))


@pytest.mark.parametrize("slow", ["fit", "apply", "finish"])
def test_a_training_run_that_is_interrupted_leaves_what_it_keeps_and_serves_as_it_was(
    part: Callable[[Interrupt], TrainingRun], small: MethodSettings, tmp_path: Path, slow: str
) -> None:
    interrupt = Interrupt()
    here = part(interrupt)
    calls: dict[str, Callable[[], object]] = {
        "fit": lambda: here.fit(build_strategy("lpsfed", small), RoundContext(1, 2, 0), received(small)),
        "apply": lambda: here.apply(received(small), RoundCosts(round=1)),
        "finish": here.finish,
    }
    kept, quality, served = contents(tmp_path / "model"), here.quality, here._best._answers.served
    interrupt.set()
    with pytest.raises(Interrupted):
        calls[slow]()
    assert contents(tmp_path / "model") == kept and {"model.json", "quality.json"} < set(kept)
    assert (here.quality, here._best._answers.served, here.applied) == (quality, served, 0)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}
