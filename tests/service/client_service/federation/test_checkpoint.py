"""Training that is kept and taken up again goes on to the bit. What is damaged, or belongs elsewhere, is not taken."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from client_service.data.interactions import Shard
from client_service.federation import checkpoint as subject
from client_service.federation.checkpoint import (
    NAME,
    Owner,
    TrainingCheckpoint,
    delete_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from client_service.federation.messages import QualityOut, RoundQuality
from client_service.training.item_trainer import ItemTrainer
from client_service.training.training_state import RoundContext, TrainingState
from shared import files
from shared.method.parameters import Float32, Parameters, State
from shared.method.settings import MethodSettings
from shared.method.spectrum import low_spectrum
from shared.method.tensors import initial_parameters
from shared.strategies import STRATEGIES, build_strategy
from shared.strategies.strategy import Strategy

CPU = torch.device("cpu")
METHOD = MethodSettings(width=3, layers=1, cutoff=16, negatives=4, batch_size=64, catalogue=40)
ROUNDS = 9
RANDOM = {"start": "random", "fusion": False}  # an exact start is looked for by validation, which takes its time


def client_of(shard: Shard, strategy: Strategy, method: MethodSettings) -> ItemTrainer:
    listed = replace(shard, places=np.arange(40))
    return ItemTrainer(listed, low_spectrum(shard.train, method.cutoff), method, CPU, kind=strategy.model)


def received(strategy: Strategy, method: MethodSettings, number: int) -> Parameters:
    """What an aggregator could have made of round `number`."""
    arrays = initial_parameters(strategy.tensors(method), number, exact=False)
    return Parameters(arrays, {name: 0.1 * (number + 1) for name in strategy.scalars if name != "rho"})


def lived(client: ItemTrainer, strategy: Strategy, number: int) -> Parameters:
    """One whole round: train on what the last one gave, then load what this one gives."""
    client.context = RoundContext(number, ROUNDS, 0, np.full(12, 1 / 12))
    update = strategy.fit_round(client, strategy.common_answer(State(client.received.arrays, client.received.scalars)))
    client.load(received(strategy, client.method, number))
    return Parameters({name: value.copy() for name, value in update.arrays.items()}, update.scalars)


def begun(shard: Shard, strategy: Strategy, method: MethodSettings) -> ItemTrainer:
    """After three rounds: past the warm-up, with an optimiser that has moved everything."""
    client = client_of(shard, strategy, method)
    client.load(received(strategy, method, 0))
    for number in (1, 2, 3):
        lived(client, strategy, number)
    return client


def everything(client: ItemTrainer) -> dict[str, Float32]:
    """Copies of all that is there."""
    return {name: value.copy() for name, value in client.state().arrays.items()}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


@pytest.fixture
def owner() -> Owner:
    return Owner(run="run-1", seed=3, shard="f" * 64, method=METHOD, kind="", start=None, recipe=None)


@pytest.fixture
def checkpoint(owner: Owner, planted: Shard) -> TrainingCheckpoint:
    client = begun(planted, build_strategy("lpsfed", METHOD), METHOD.model_copy(update=RANDOM))
    entry = RoundQuality(
        round=3, values={"recall": 0.1 + 0.2, "ndcg": 1 / 3}, scalars={"rho": 2 / 3, "margin": 1e-9}, loss=0.7
    )
    quality = QualityOut(client="shop", run="run-1", best_round=3, rounds=(entry,), users=40)
    return TrainingCheckpoint(owner, 3, quality, client.state())


@pytest.mark.parametrize("optimiser", ["adam", "rmsprop"])
@pytest.mark.parametrize("name", sorted(set(STRATEGIES) - {"fedgsp", "fedsgd"}))  # which silos of nodes train
def test_training_that_was_kept_and_taken_up_by_another_process_goes_on_to_the_bit(
    planted: Shard, owner: Owner, tmp_path: Path, name: str, optimiser: str
) -> None:
    method = METHOD.model_copy(update={"optimiser": optimiser, "decay": 0.1, **RANDOM})
    strategy = build_strategy(name, method)
    first, second = begun(planted, strategy, method), client_of(planted, strategy, method)
    save_checkpoint(tmp_path, TrainingCheckpoint(owner, 3, QualityOut(client="shop"), first.state()))
    kept = load_checkpoint(tmp_path, owner)
    assert kept is not None and second.fits(kept.state) and not same(everything(first), everything(second))
    second.restore(kept.state)
    assert same(everything(first), everything(second))
    for number in (4, 5):
        one, two = lived(first, strategy, number), lived(second, strategy, number)
        assert same(dict(one.arrays), dict(two.arrays)) and one.scalars == two.scalars
    assert same(everything(first), everything(second))
    assert not same(everything(first), dict(kept.state.arrays))


def test_two_optimisers_are_kept_each_with_what_it_trains(planted: Shard) -> None:
    strategy = build_strategy("pfedrec", METHOD)
    memories = begun(planted, strategy, METHOD).state().optimiser_states()
    moved = {only: {key.rpartition("/")[0] for key in memory} for only, memory in memories.items()}
    assert moved == {"embedding": {"embedding", "embedding_bias"}, "item.": {"item.table"}}


def without(start: str) -> Callable[[TrainingState], TrainingState]:
    return lambda state: replace(state, arrays={n: v for n, v in state.arrays.items() if not n.startswith(start)})


LOSSES: dict[str, Callable[[TrainingState], TrainingState]] = {
    "the optimiser": without("optimiser/"),
    "an optimiser's steps": lambda state: replace(
        state, arrays={n: np.ones_like(v) if n.endswith("/step") else v for n, v in state.arrays.items()}
    ),
    "the tables": lambda state: replace(
        state, arrays={n: v + 0.5 if n == "tables/item_table" else v for n, v in state.arrays.items()}
    ),
    "that they are fitted": lambda state: replace(state, fitted=False),
    "the margin": lambda state: replace(state, scalars={}),
}


@pytest.mark.parametrize("what", LOSSES)
def test_all_that_is_kept_is_needed(planted: Shard, what: str) -> None:
    method = METHOD.model_copy(update=RANDOM | {"margin_strength": 0.5})
    strategy = build_strategy("lpsfed", method)
    first, second = begun(planted, strategy, method), client_of(planted, strategy, method)
    second.restore(LOSSES[what](first.state()))
    one, two = lived(first, strategy, 4), lived(second, strategy, 4)
    assert not same(dict(one.arrays), dict(two.arrays))


@pytest.mark.parametrize(("name", "changes"), [("lpsfed", {"width": 4}), ("fedpub", {}), ("fedmf", {})])
def test_a_state_of_another_model_does_not_fit(planted: Shard, name: str, changes: dict[str, int]) -> None:
    state = client_of(planted, build_strategy("lpsfed", METHOD), METHOD.model_copy(update=RANDOM)).state()
    other = METHOD.model_copy(update=RANDOM | changes)
    client = client_of(planted, build_strategy(name, other), other)
    assert client.fits(client.state()) and not client.fits(state)


@pytest.mark.parametrize("key", ["optimiser//unknown/step", "optimiser/kernels/embedding/step"])
def test_nor_does_one_whose_optimiser_moves_what_the_model_does_not_have(planted: Shard, key: str) -> None:
    client = client_of(planted, build_strategy("lpsfed", METHOD), METHOD.model_copy(update=RANDOM))
    state = client.state()
    assert not client.fits(replace(state, arrays={**state.arrays, key: np.zeros(1, dtype=np.float32)}))


def test_a_checkpoint_comes_back_as_it_was(checkpoint: TrainingCheckpoint, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "new", checkpoint)
    found = load_checkpoint(tmp_path / "new", checkpoint.owner)
    assert found is not None
    assert (found.owner, found.round, found.quality) == (checkpoint.owner, 3, checkpoint.quality)
    assert same(dict(found.state.arrays), dict(checkpoint.state.arrays))
    assert found.state.scalars == checkpoint.state.scalars != {} and found.state.fitted
    received = found.state.received
    assert set(received.arrays) == {spec.name for spec in build_strategy("lpsfed", METHOD).declaration(METHOD).tensors}


def test_there_is_one_file_and_it_is_no_larger_than_what_it_holds(
    checkpoint: TrainingCheckpoint, tmp_path: Path
) -> None:
    for number in (0, 1, 2):
        save_checkpoint(tmp_path, replace(checkpoint, round=number))
    assert [path.name for path in tmp_path.iterdir()] == [NAME]
    assert (tmp_path / NAME).stat().st_size < sum(value.nbytes for value in checkpoint.state.arrays.values()) + 10_000
    delete_checkpoint(tmp_path)
    delete_checkpoint(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_where_there_is_none_nothing_is_found_and_nothing_said(
    owner: Owner, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert load_checkpoint(tmp_path, owner) is None and load_checkpoint(tmp_path / "nowhere", owner) is None
    assert caplog.records == []


@pytest.mark.parametrize(
    "change",
    [
        {"run": "run-2"},
        {"seed": 4},
        {"shard": "e" * 64},
        {"method": METHOD.model_copy(update={"learning_rate": 0.5})},
        {"kind": "masked"},
        {"start": {"cutoff": 4, "ridge": 0.1, "exponent": 0.5}},
    ],
)
def test_another_s_checkpoint_is_passed_over(
    checkpoint: TrainingCheckpoint, tmp_path: Path, change: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    save_checkpoint(tmp_path, checkpoint)
    other = Owner.model_validate(checkpoint.owner.model_dump() | change)
    assert load_checkpoint(tmp_path, other) is None and caplog.records == []
    assert load_checkpoint(tmp_path, checkpoint.owner) is not None


def test_one_of_another_format_is_passed_over(
    checkpoint: TrainingCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_checkpoint(tmp_path, checkpoint)
    monkeypatch.setattr(subject, "FORMAT", "lpsfed-training/2")
    assert load_checkpoint(tmp_path, checkpoint.owner) is None


def refused(folder: Path, owner: Owner, caplog: pytest.LogCaptureFixture) -> bool:
    """Nothing is taken, and a warning says so without a word of what is in the file."""
    caplog.clear()
    found = load_checkpoint(folder, owner)
    events = [record for record in caplog.records if record.levelno == logging.WARNING]
    said = "".join(record.getMessage() for record in events)
    return found is None and "training_checkpoint_refused" in said and str(folder) not in said


@pytest.mark.parametrize("kind", ["empty", "text", "foreign", "no head", "no checksum"])
def test_what_is_no_checkpoint_is_refused(
    checkpoint: TrainingCheckpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    save_checkpoint(tmp_path, checkpoint)
    arrays = load_file(tmp_path / NAME)
    if kind in ("empty", "text"):
        (tmp_path / NAME).write_text("" if kind == "empty" else "training goes on" * 100)
    else:
        head = subject._head(checkpoint).model_dump_json()
        metadata = {"foreign": None, "no head": {"sha256": "0" * 64}, "no checksum": {"head": head}}[kind]
        save_file(arrays, tmp_path / NAME, metadata=metadata)
    assert refused(tmp_path, checkpoint.owner, caplog)


def test_one_that_is_cut_off_anywhere_is_refused(
    checkpoint: TrainingCheckpoint, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_checkpoint(tmp_path, checkpoint)
    content = (tmp_path / NAME).read_bytes()
    for length in (*range(0, len(content), 97), len(content) - 1):
        (tmp_path / NAME).write_bytes(content[:length])
        assert refused(tmp_path, checkpoint.owner, caplog), length


def test_one_in_which_a_byte_has_changed_is_never_taken(checkpoint: TrainingCheckpoint, tmp_path: Path) -> None:
    save_checkpoint(tmp_path, checkpoint)
    content = (tmp_path / NAME).read_bytes()
    for place in range(0, len(content), 13):
        changed = bytearray(content)
        changed[place] ^= 1 << (place % 7)
        (tmp_path / NAME).write_bytes(changed)
        assert load_checkpoint(tmp_path, checkpoint.owner) is None, place


@pytest.mark.parametrize("moment", ["writing", "settling"])
def test_a_crash_while_one_is_kept_leaves_the_one_before(
    checkpoint: TrainingCheckpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def crash(*given: Any, **_: Any) -> None:
        if moment == "writing":
            Path(given[0]).write_bytes(b"half of it")
        raise OSError("the machine stops here")

    save_checkpoint(tmp_path, checkpoint)
    with monkeypatch.context() as patched, pytest.raises(OSError, match="stops here"):
        patched.setattr(files, "write_arrays" if moment == "writing" else "put_in_place", crash)
        save_checkpoint(tmp_path, replace(checkpoint, round=4))
    found = load_checkpoint(tmp_path, checkpoint.owner)
    assert found is not None and found.round == 3 and len(list(tmp_path.iterdir())) == 1
    save_checkpoint(tmp_path, replace(checkpoint, round=5))
    found = load_checkpoint(tmp_path, checkpoint.owner)
    assert found is not None and found.round == 5 and len(list(tmp_path.iterdir())) == 1
