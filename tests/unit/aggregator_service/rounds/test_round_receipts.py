"""A round's receipts: each state of a run keeps its own, and none is copied for the next update."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregator_service.rounds import transitions
from aggregator_service.rounds.run import RoundReceipts, add_receipt
from aggregator_service.storage.records import Receipt
from shared.protocol.schemas import RunIn

CLIENTS = [f"client-{number}" for number in range(6)]


def receipt(client: str, digest: str = "d") -> Receipt:
    return Receipt("run-1", 1, client, digest, 10, 1.0)


def content(receipts: RoundReceipts) -> tuple[dict[str, Receipt], list[str], int, set[str], list[Receipt | None]]:
    """All that can be asked of a mapping."""
    found = [receipts.get(client) for client in CLIENTS]
    assert [client in receipts for client in CLIENTS] == [one is not None for one in found]
    return dict(receipts), list(receipts), len(receipts), set(receipts.keys()), found


def expected(model: dict[str, Receipt]) -> tuple[dict[str, Receipt], list[str], int, set[str], list[Receipt | None]]:
    return model, list(model), len(model), set(model), [model.get(client) for client in CLIENTS]


@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from(CLIENTS), st.sampled_from("de")), max_size=30))
def test_whichever_state_a_receipt_is_added_to_no_other_changes(steps: list[tuple[int, str, str]]) -> None:
    """Also to one that others follow, as after a transition that was refused, and in place of an earlier receipt."""
    states = [RoundReceipts({})]
    models: list[dict[str, Receipt]] = [{}]
    for number, client, digest in steps:
        chosen, one = number % len(states), receipt(client, digest)
        states.append(add_receipt(states[chosen], one))
        models.append({**models[chosen], client: one})
    assert [content(one) for one in states] == [expected(model) for model in models]
    assert all(one == model for one, model in zip(states, models, strict=True))


def test_what_is_iterated_does_not_change_while_others_are_added() -> None:
    few = add_receipt({CLIENTS[0]: receipt(CLIENTS[0])}, receipt(CLIENTS[1]))
    asked = iter(few)
    assert next(asked) == CLIENTS[0]
    more = add_receipt(few, receipt(CLIENTS[2]))
    assert list(asked) == [CLIENTS[1]] and list(more) == CLIENTS[:3]


def test_an_update_copies_no_receipts_of_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"silo-{number}" for number in range(300)]
    values = {"rounds": 1, "clients": len(names), "deadline_seconds": 100.0}
    run = transitions.start_run("run-1", RunIn.model_validate(values), clients=frozenset(names), now=0.0)
    copied: list[int] = []
    make = RoundReceipts.__init__
    monkeypatch.setattr(
        RoundReceipts, "__init__", lambda self, given: (copied.append(len(given)), make(self, given))[1]
    )
    for count, name in enumerate(names):
        before = run
        run = transitions.accept_update(run, receipt(name))
        assert isinstance(run.receipts, RoundReceipts)
        assert (len(before.receipts), len(run.receipts)) == (count, count + 1)
    assert copied == [0] and run.phase == "aggregated"
