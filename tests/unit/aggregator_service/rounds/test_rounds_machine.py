"""Any order of joins, updates, repetitions, deadlines, damage and ends: the round machine does what a plain model does.

The model is written down in terms of sets and of dictionaries; of the machine it knows only the names of its events.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from aggregator_service.rounds import transitions
from aggregator_service.rounds.history import StateTexts, run_for_client
from aggregator_service.rounds.run import Run
from aggregator_service.storage.records import Receipt
from shared.method.parameters import State, Update
from shared.method.settings import MethodSettings
from shared.protocol.schemas import RunIn, RunOut
from shared.strategies import build_strategy
from shared.strategies.lpsfed import similarities
from tests.support.model_of_rounds import DEADLINE_SECONDS, NAMES, Model

STRATEGY = build_strategy("lpsfed", MethodSettings())
CLIENTS = st.sampled_from(NAMES)
RHOS = st.sampled_from((None, 0.0, 0.5, 0.5, 1.0, 4.0))
ORDER = {"waiting": 0, "open": 1, "aggregated": 2, "finished": 3, "failed": 3}


class Rounds(RuleBasedStateMachine):
    """The machine under test beside the model."""

    run: Run
    model: Model

    @initialize(
        count=st.integers(1, 3),
        clients=st.integers(1, 3),
        quorum=st.integers(1, 3) | st.none(),
        joined=st.sets(CLIENTS),
    )
    def begin(self, count: int, clients: int, quorum: int | None, joined: set[str]) -> None:
        quorum = None if quorum is None else min(quorum, clients)
        request = RunIn(rounds=count, clients=clients, quorum=quorum, deadline_seconds=DEADLINE_SECONDS)
        self.texts = StateTexts()
        self.model = Model(count, clients, quorum or clients, set(joined))
        self.run = transitions.start_run("run-1", request, clients=frozenset(joined), now=0.0)
        self.state = State({"weight": np.zeros(2, dtype=np.float32)})
        self.updates: dict[str, Update] = {}  # each client's last accepted one
        self.receipts: dict[tuple[int, str], Receipt] = {}
        self.closed: dict[int, dict[str, str]] = {}
        self.model.settle()

    @rule(share=st.sampled_from((0.0, 0.3, 0.7, 1.0, 2.5)), noticed=st.booleans())
    def time_passes(self, share: float, noticed: bool) -> None:
        """Until somebody looks, a deadline that is over has no other effect than that updates are too late."""
        self.model.now += share * DEADLINE_SECONDS
        if not noticed:
            return
        self._move(transitions.advance_run(self.run, self.model.now))
        self.model.settle()

    @rule(client=CLIENTS)
    def join(self, client: str) -> None:
        """Also one that has joined before, as after a restart of its own."""
        new = client not in self.model.enrolled and self.model.phase not in ("finished", "failed")
        self._move(transitions.enrol_client(self.run, client, now=self.model.now))
        if new:
            self.model.enrolled.add(client)
            self.model.settle()

    @rule(client=CLIENTS, behind=st.sampled_from((0, 0, 0, 0, 1, -1)), body=st.sampled_from("aab"), rho=RHOS)
    def upload(self, client: str, behind: int, body: str, rho: float | None) -> None:
        """An update of this round, an earlier or a later one: new, the same again, another, too late or too early."""
        number = max(1, self.run.round - behind)
        digest = f"{body} of {client} in {number}"
        refusal = self.model.refusal(client, number, digest)
        receipt = Receipt("run-1", number, client, digest, 10, self.model.now)
        if refusal is not None:
            with pytest.raises(refusal) as raised:
                self._accept(receipt)
            assert type(raised.value) is refusal
        elif client in self.model.sent.get(number, {}):
            assert self._accept(receipt) is self.run
        else:
            self._move(self._accept(receipt))
            self.receipts[number, client] = receipt
            self.model.here[client] = digest, rho
            self._keep(client, rho, digest)
            self.model.settle()

    def _accept(self, receipt: Receipt) -> Run:
        return transitions.accept_update(self.run, receipt, earlier=self.receipts.get((receipt.round, receipt.client)))

    def _keep(self, client: str, rho: float | None, digest: str) -> None:
        value = np.full(2, len(self.receipts) + (digest[0] == "b"), dtype=np.float32)
        self.updates[client] = Update(
            client, {"weight": value}, {"margin": 0.5} | ({} if rho is None else {"rho": rho})
        )

    @precondition(lambda self: self.run.phase == "aggregated")
    @rule()
    def aggregate(self) -> None:
        here, model = self.model.here, self.model
        self.state = STRATEGY.aggregate(self.state, [self.updates[client] for client in sorted(here)])
        self.closed[model.round] = {client: digest for client, (digest, _) in here.items()}
        self._move(transitions.finish_round(self.run, model.now))
        model.close()
        self._personalised_as_the_model_says(here)

    def _personalised_as_the_model_says(self, here: dict[str, Any]) -> None:
        mean = np.mean([self.updates[client].arrays["weight"] for client in here], axis=0)
        for client, near in self.model.near().items():
            own = self.updates[client]
            expected = near * mean + (1 - near) * own.arrays["weight"]
            np.testing.assert_allclose(STRATEGY.personalise(self.state, own).arrays["weight"], expected, rtol=1e-5)
        np.testing.assert_allclose(STRATEGY.personalise(self.state, None).arrays["weight"], mean, rtol=1e-5)

    @precondition(lambda self: self.run.phase == "aggregated")
    @rule(chosen=st.sets(CLIENTS, min_size=1))
    def lose(self, chosen: set[str]) -> None:
        """The disk has damaged these updates: the round, and only this round, opens once more while its time lasts."""
        gone = chosen & self.model.here.keys()
        self.run = transitions.reopen_damaged_round(self.run, gone, now=self.model.now)
        for client in gone:
            del self.model.here[client], self.receipts[self.model.round, client]
        self.model.phase = "open"
        self.model.settle()

    @precondition(lambda self: self.run.active)
    @rule()
    def fail(self) -> None:
        self._move(transitions.fail_run(self.run, "the operator has ended it", now=self.model.now))
        self.model.phase = "failed"

    def _move(self, after: Run) -> None:
        """Phases go forward only, and what has ended stays as it is."""
        before = self.run
        assert (after.round, ORDER[after.phase]) >= (before.round, ORDER[before.phase])
        assert before.active or after == before
        self.run = after

    @invariant()
    def stands_where_the_model_does(self) -> None:
        assert (self.run.phase, self.run.round) == (self.model.phase, self.model.round)
        assert self.run.clients == self.model.enrolled
        assert self.run.phase != "open" or self.run.deadline == self.model.deadline
        assert (self.run.reason is not None) == (self.run.phase == "failed")

    @invariant()
    def holds_exactly_one_receipt_of_each_accepted_update(self) -> None:
        held = {client: receipt.digest for client, receipt in self.run.receipts.items()}
        assert held == {client: digest for client, (digest, _) in self.model.here.items()}
        assert all((r.client, r.round) == (client, self.run.round) for client, r in self.run.receipts.items())

    @invariant()
    def a_closed_round_is_as_it_was_closed(self) -> None:
        for number, digests in self.closed.items():
            assert {c: d for c, (d, _) in self.model.sent[number].items()} == digests
            assert self.run.is_aggregated(number)

    @invariant()
    def rho_stands_among_the_latest_of_everybody(self) -> None:
        """Also of those who were away in the last rounds and may come back (Eq. 12)."""
        found = similarities(self.state.latest)
        assert found.keys() == self.model.latest.keys() <= self.model.enrolled
        assert all(found[client] == pytest.approx(near) for client, near in self.model.near().items())

    @invariant()
    def tells_each_client_its_own_standing(self) -> None:
        for client in NAMES:
            told = run_for_client(self.run, client, sequence=1, now=self.model.now)
            expected = "expected" if self.run.active and client in self.model.enrolled else "absent"
            assert told.standing == ("received" if client in self.model.here else expected)
            assert (told.received, told.joined) == (len(self.model.here), len(self.model.enrolled))
            for _ in range(2):  # the second time from what is kept
                written = self.texts.write(self.run, client, sequence=1, now=self.model.now)
                assert RunOut.model_validate_json(written) == told


TestRounds = Rounds.TestCase
TestRounds.settings = settings(max_examples=150, stateful_step_count=40, deadline=None, derandomize=True)
