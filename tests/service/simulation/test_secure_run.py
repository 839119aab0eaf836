"""The same federation in open and in secure mode: the same parameters, and an aggregator that saw no single update."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from client_service.boundary.ledger import Ledger
from client_service.federation.upload import UpdateSender
from client_service.secure_rounds.masking import ROUND_FILE, Masking
from shared.method.parameters import Float32, Parameters
from shared.method.settings import MethodSettings
from shared.protocol.schemas import RunOut
from shared.protocol.secure import fixed_point
from shared.protocol.secure.fixed_point import STEP
from shared.protocol.wire import encode_body
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import Outcome, Progress
from simulation.experiments.in_process import simulate_experiment

if TYPE_CHECKING:
    from conftest import Silos

ROUNDS = 2
LOOKS = 40  # files that are searched while the run goes on, beside those at its end
Described = Callable[..., Experiment]
Sent = dict[tuple[str, int], Parameters]


@pytest.fixture
def described(silos: Silos, small: MethodSettings, tmp_path: Path) -> Described:
    def describe(count: int, *, secure: bool) -> Experiment:
        # Rates at which the MLPs move in two rounds, so that there is something to average.
        changes = {"start": "random", "mlp_learning_rate": 0.01, "similarity_floor": 0.0}
        method = small.model_copy(update=changes)
        one = Experiment(silos(count), tmp_path / f"secure-{secure}", method, rounds=ROUNDS, seed=3, device="cpu")
        return replace(one, secure=secure)

    return describe


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    """Every client's real update of every round, whatever became of it on its way."""
    found, send = {}, UpdateSender.send

    async def noted(sending: UpdateSender, part: Any, update: Parameters, state: RunOut) -> None:
        found[part.place.client, part.context.round] = update
        await send(sending, part, update, state)

    monkeypatch.setattr(UpdateSender, "send", noted)
    return found


def means(one: Experiment) -> dict[int, dict[str, Float32]]:
    """The aggregator's state after each round."""
    folder = one.folder / "aggregator"
    with closing(sqlite3.connect(folder / "aggregator.sqlite")) as database:
        rows = database.execute("select round, blob from states order by round").fetchall()
    return {number: load_file(folder / "blobs" / blob) for number, blob in rows}


def figures(outcome: Outcome) -> list[list[tuple[str, float | None, float | None]]]:
    return [[(who.client, who.rho, who.rhobar) for who in one.participants] for one in outcome.history.rounds]


@pytest.fixture
def drawn_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both modes train alike: without it a secure run's draws follow from a secret of each silo."""
    monkeypatch.setattr(Masking, "draws", lambda *_: b"")


@pytest.mark.usefixtures("drawn_alike")
def test_both_modes_end_with_the_same_parameters(described: Described, sent: Sent) -> None:
    opened, secured = described(4, secure=False), described(4, secure=True)
    first, updates = simulate_experiment(opened, lambda _: None), dict(sent)
    again = simulate_experiment(secured, lambda _: None)
    for name, value in means(opened)[1].items():
        difference = np.abs(means(secured)[1][name].astype(np.float64) - value)
        assert (difference <= STEP + 2.0**-23 * np.abs(value)).all()
    for place, update in updates.items():  # the second round began with what the first one gave
        for name, value in update.arrays.items():
            np.testing.assert_allclose(sent[place].arrays[name], value, rtol=1e-4, atol=1e-6)
    for name, value in means(opened)[ROUNDS].items():
        np.testing.assert_allclose(means(secured)[ROUNDS][name], value, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(*[[who[1] or 0.0 for one in figures(of) for who in one] for of in (first, again)])
    assert [who[2] for who in figures(first)[0]] == [who[2] for who in figures(again)[0]]
    assert min(abs(v).max() for v in means(opened)[ROUNDS].values()) > 0.0


def rows(updates: Sent, states: dict[int, dict[str, Float32]]) -> Iterator[bytes]:
    """Every row of every tensor of every update, in each form in which it could lie somewhere; and each M.

    Left out is what tells nothing of one client: a row that training left as the state before had it, and one that two
    clients of the round sent alike but for a rounding (a first step moves each number by the same length), for the mean
    of such rows may be rounded to one of them.
    """
    for (_, number), update in updates.items():
        others = [other for (_, n), other in updates.items() if n == number and other is not update]
        for name, value in update.arrays.items():
            for place, row in enumerate(np.atleast_2d(value)):
                known = [np.atleast_2d(state[name])[place] for n, state in states.items() if n < number]
                alike = any(np.allclose(np.atleast_2d(other.arrays[name])[place], row, rtol=1e-5) for other in others)
                if np.count_nonzero(row) > 1 and not alike and not any(np.array_equal(row, one) for one in known):
                    forms = (row.astype("<f4"), row.astype("<f8"), fixed_point.encode(row, "sought").astype("<u8"))
                    yield from (form.tobytes() for form in forms)
        margin = np.float64(update.scalars["margin"])
        if margin:
            yield from (margin.tobytes(), repr(float(margin)).encode())


def contents(folder: Path) -> Iterator[bytes]:
    """Of all files that are there, each as it is at that moment."""
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError, IsADirectoryError):
            yield path.read_bytes()


def test_the_aggregator_has_no_single_update_at_any_time(
    described: Described, sent: Sent, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    one, seen = described(3, secure=True), set()
    folder = one.folder / "aggregator"

    def look(progress: Progress) -> None:
        del progress
        if len(seen) < LOOKS:
            seen.update(contents(folder))

    simulate_experiment(one, look)
    kept = list(contents(folder))
    wanted = set(rows(sent, means(one)))
    assert len(sent) == 3 * ROUNDS and len(wanted) > 100
    assert [part for part in wanted for content in (*seen, *kept, caplog.text.encode()) if part in content] == []
    opened = [encode_body(update) for update in sent.values()]  # as they would lie there in the open mode
    assert all(any(part in body for part in wanted) for body in opened)
    for shard in one.shards:
        ledger_of(one.state_folder(shard))


def ledger_of(state: Path) -> None:
    """A client's ledger tells of masked vectors, and its secrets have gone with the run."""
    assert not list(state.glob(f"{ROUND_FILE}*"))
    intents = [entry for entry in Ledger(state / "ledger.jsonl").entries() if entry["kind"] == "intent"]
    said = ("keys", "shares", "checks", "update", "consents", "answers")
    assert [entry["call"] for entry in intents if entry["call"] in said] == [*said] * ROUNDS
    updates = [entry for entry in intents if entry["call"] == "update"]
    assert {field["dtype"] for entry in updates for field in entry["tensors"]} == {"U64"}
    assert all(set(entry["scalars"]) <= {"rho"} for entry in updates)
