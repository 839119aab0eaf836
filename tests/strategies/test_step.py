"""What a server's step and up-only reports may rely on, whatever strategy brings them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from aggregator_service.aggregation.bodies import pack_state, unpack_state
from shared.errors import PrivacyError, ProtocolError
from shared.method.declaration import Declaration, TensorSpec
from shared.method.parameters import Parameters, State, Update, digest
from shared.method.settings import MethodSettings
from shared.method.tensors import initial_parameters
from shared.protocol.gate import pass_gate
from shared.protocol.masked_wire import declare_answer, forms
from shared.protocol.secure.vectors import layout
from shared.protocol.wire import check, encode, open_parameters
from shared.strategies import build_strategy
from shared.strategies.agreement import secure_declaration
from shared.strategies.robust_aggregation import robust
from shared.strategies.strategy import Strategy

METHOD = MethodSettings(width=2, layers=1)
REPORT = TensorSpec(name="magnitude.all", shape=(3,))
FEDAVG = build_strategy("fedavg", METHOD)


def remember(before: State, centre: State) -> State:
    """Half a step toward the centre; the memory counts the rounds and keeps the reports."""
    arrays = {name: (value + centre.arrays[name]) / 2 for name, value in before.arrays.items()}
    rounds = before.memory.get("rounds", np.zeros(1, dtype=np.float32)) + np.float32(1.0)
    return replace(centre, arrays=arrays, memory={"rounds": rounds, **centre.reports})


STEPPING = replace(FEDAVG, step=remember)
REPORTING = replace(STEPPING, reports=(REPORT,))


def updates_of(strategy: Strategy, *seeds: int) -> list[Update]:
    reports = {spec.name: np.arange(3, dtype=np.float32) for spec in strategy.reports}
    starts = [initial_parameters(strategy.tensors(METHOD), seed, exact=False) for seed in seeds]
    return [Update(f"client-{seed}", start | reports, {}) for seed, start in zip(seeds, starts, strict=True)]


def start_of(strategy: Strategy) -> State:
    return State(initial_parameters(strategy.tensors(METHOD), 0, exact=False))


def test_without_a_step_the_centre_is_adopted_and_what_was_remembered_stays() -> None:
    memory = {"rounds": np.ones(1, dtype=np.float32)}
    updates = updates_of(FEDAVG, 1, 2)
    after = FEDAVG.aggregate(replace(start_of(FEDAVG), memory=memory), updates)
    assert after.memory is memory
    assert digest(after.arrays) == digest(FEDAVG.aggregate(start_of(FEDAVG), updates).arrays)


def test_a_step_moves_from_the_state_and_remembers_over_a_restart(tmp_path: Path) -> None:
    updates = updates_of(STEPPING, 1, 2)
    first = STEPPING.aggregate(start_of(STEPPING), updates)
    content = pack_state(first)
    (tmp_path / "state").write_bytes(encode(content))
    stored = open_parameters(tmp_path / "state")[1]
    revived = unpack_state(stored, first.latest)
    assert revived.own == {} and list(revived.memory) == ["rounds"]
    again, expected = STEPPING.aggregate(revived, updates), STEPPING.aggregate(first, updates)
    assert again.memory["rounds"].tolist() == [2.0]
    assert digest(again.arrays) == digest(expected.arrays)


def test_no_client_is_sent_what_a_step_remembers() -> None:
    state = REPORTING.aggregate(start_of(REPORTING), updates_of(REPORTING, 1, 2))
    assert set(REPORTING.personalise(state, None).arrays) == set(start_of(REPORTING).arrays)


@pytest.mark.parametrize("aggregate", [{}, {"aggregate": "median"}, {"clip_factor": 2.0}])
def test_a_step_sees_the_reports_of_every_centre_and_the_state_keeps_none(aggregate: dict[str, object]) -> None:
    strategy = robust(REPORTING, METHOD.model_copy(update=aggregate))
    after = strategy.aggregate(start_of(strategy), updates_of(strategy, 1, 2, 3))
    assert after.memory[REPORT.name].tolist() == [0.0, 1.0, 2.0] and after.reports == {}


def test_a_step_needs_the_mean_alone() -> None:
    assert not REPORTING.needs_single_updates
    assert secure_declaration(REPORTING.declaration(METHOD), REPORTING, METHOD).secure


def declared() -> Declaration:
    return REPORTING.declaration(METHOD)


def test_reports_are_declared_pass_the_gate_and_are_checked(tmp_path: Path) -> None:
    (update,) = updates_of(REPORTING, 1)
    body = pass_gate(declared(), Parameters(update.arrays))
    (tmp_path / "body").write_bytes(body)
    check(declared(), *open_parameters(tmp_path / "body"))
    assert REPORT.name in forms(declared()) and REPORT.name in layout(declared().model_copy(update={"secure": True}))


def test_an_update_without_its_report_or_of_another_shape_is_refused(tmp_path: Path) -> None:
    (update,) = updates_of(REPORTING, 1)
    wrong = Parameters({**update.arrays, REPORT.name: np.zeros(4, dtype=np.float32)})
    for content in (Parameters(start_of(REPORTING).arrays), wrong):
        with pytest.raises(PrivacyError):
            pass_gate(declared(), content)
        (tmp_path / "body").write_bytes(encode(content))
        with pytest.raises(ProtocolError):
            check(declared(), *open_parameters(tmp_path / "body"))


def test_an_answer_has_no_report() -> None:
    assert declare_answer(declared()).uploaded == FEDAVG.declaration(METHOD).tensors


def test_a_declaration_without_reports_is_written_as_before() -> None:
    written = FEDAVG.declaration(METHOD).model_dump(mode="json")
    assert set(written) == {"strategy", "tensors", "scalars", "secure"}
    assert Declaration.model_validate_json(declared().model_dump_json()) == declared()
