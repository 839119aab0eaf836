"""What a server's step, reports, broadcasts and client memory may rely on, whatever strategy brings them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from aggregator_service.aggregation.bodies import pack_state, unpack_state
from client_service.boundary.gate import longest_answer
from shared.errors import PrivacyError, ProtocolError, SettingsError
from shared.method.declaration import Declaration, TensorSpec, describe_difference
from shared.method.parameters import Parameters, State, Update, digest_arrays
from shared.method.settings import MethodSettings
from shared.method.tensors import initial_parameters
from shared.protocol.gate import pass_gate
from shared.protocol.lengths import least_update
from shared.protocol.masked_wire import body_forms, declare_answer
from shared.protocol.secure.vectors import vector_layout
from shared.protocol.wire import decode_body, encode_body, open_parameters, require_content
from shared.strategies import build_strategy
from shared.strategies.agreement import declare_federation, secure_declaration
from shared.strategies.robust_aggregation import aggregate_robustly
from shared.strategies.strategy import Strategy, fit_plain
from tests.support.drifting import TOLD, drifting, register_drifting

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
    assert digest_arrays(after.arrays) == digest_arrays(FEDAVG.aggregate(start_of(FEDAVG), updates).arrays)


def test_a_step_moves_from_the_state_and_remembers_over_a_restart(tmp_path: Path) -> None:
    updates = updates_of(STEPPING, 1, 2)
    first = STEPPING.aggregate(start_of(STEPPING), updates)
    content = pack_state(first)
    (tmp_path / "state").write_bytes(encode_body(content))
    stored = open_parameters(tmp_path / "state")[1]
    revived = unpack_state(stored, first.latest)
    assert revived.own == {} and list(revived.memory) == ["rounds"]
    again, expected = STEPPING.aggregate(revived, updates), STEPPING.aggregate(first, updates)
    assert again.memory["rounds"].tolist() == [2.0]
    assert digest_arrays(again.arrays) == digest_arrays(expected.arrays)


def test_no_client_is_sent_what_a_step_remembers() -> None:
    state = REPORTING.aggregate(start_of(REPORTING), updates_of(REPORTING, 1, 2))
    assert set(REPORTING.personalise(state, None).arrays) == set(start_of(REPORTING).arrays)


@pytest.mark.parametrize("aggregate", [{}, {"aggregate": "median"}, {"clip_factor": 2.0}])
def test_a_step_sees_the_reports_of_every_centre_and_the_state_keeps_none(aggregate: dict[str, object]) -> None:
    strategy = aggregate_robustly(REPORTING, METHOD.model_copy(update=aggregate))
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
    require_content(declared(), *open_parameters(tmp_path / "body"))
    assert REPORT.name in body_forms(declared()) and REPORT.name in vector_layout(
        declared().model_copy(update={"secure": True})
    )


def test_an_update_without_its_report_or_of_another_shape_is_refused(tmp_path: Path) -> None:
    (update,) = updates_of(REPORTING, 1)
    wrong = Parameters({**update.arrays, REPORT.name: np.zeros(4, dtype=np.float32)})
    for content in (Parameters(start_of(REPORTING).arrays), wrong):
        with pytest.raises(PrivacyError):
            pass_gate(declared(), content)
        (tmp_path / "body").write_bytes(encode_body(content))
        with pytest.raises(ProtocolError):
            require_content(declared(), *open_parameters(tmp_path / "body"))


def test_an_answer_has_no_report() -> None:
    assert declare_answer(declared()).uploaded == FEDAVG.declaration(METHOD).tensors


def answered() -> tuple[Declaration, Parameters]:
    """The declaration of a strategy with a broadcast, and what its clients are given at first."""
    strategy = drifting(METHOD)
    return strategy.declaration(METHOD), strategy.common_answer(start_of(strategy))


def is_accepted(declaration: Declaration, answer: Parameters) -> bool:
    """Is it an answer that a client of this declaration takes? As `Aggregator` looks at it."""
    try:
        require_content(declare_answer(declaration), *decode_body(encode_body(answer)))
    except ProtocolError:
        return False
    return True


def test_an_answer_has_every_broadcast_in_its_form_and_none_that_was_not_declared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    register_drifting(monkeypatch)
    declaration, answer = answered()
    model = {name: value for name, value in answer.arrays.items() if name != TOLD.name}
    assert is_accepted(declaration, answer)
    wrong = (np.zeros(3, np.float32), np.full(2, np.nan, np.float32), np.zeros(2, np.uint32))
    for arrays in (model, *({**model, TOLD.name: value} for value in wrong), {**answer.arrays, "more": wrong[0]}):
        assert not is_accepted(declaration, Parameters(arrays))
    without = declaration.model_copy(update={"broadcasts": ()})
    assert not is_accepted(without, answer) and is_accepted(without, Parameters(model))


def test_broadcasts_count_in_the_length_of_an_answer_and_not_of_an_update(monkeypatch: pytest.MonkeyPatch) -> None:
    register_drifting(monkeypatch)
    declaration, _ = answered()
    large = declaration.model_copy(update={"broadcasts": (TensorSpec(name="told", shape=(1000, 1000)),)})
    assert longest_answer("personalized", large) > longest_answer("personalized", declaration) + 4_000_000
    assert longest_answer("current", large) == longest_answer("current", declaration)
    assert least_update(large) == least_update(declaration) and body_forms(large) == body_forms(declaration)
    with pytest.raises(PrivacyError, match="1 undeclared"):
        pass_gate(without_reports(large), Parameters({**start_of(FEDAVG).arrays, "told": np.zeros((1000, 1000), "f4")}))


def without_reports(declaration: Declaration) -> Declaration:
    return declaration.model_copy(update={"reports": ()})


def test_two_declarations_are_told_apart_by_their_broadcasts() -> None:
    declaration, _ = answered()
    found = describe_difference(declaration, declaration.model_copy(update={"broadcasts": ()}))
    assert found == "broadcasts: expected 'told' of shape [2], got none"
    assert Declaration.model_validate_json(declaration.model_dump_json()) == declaration


def test_a_broadcast_with_the_name_of_a_tensor_is_refused() -> None:
    twice = replace(FEDAVG, broadcasts=(FEDAVG.declaration(METHOD).tensors[0],))
    with pytest.raises(SettingsError, match="expected broadcasts of other names than its tensors"):
        twice.declaration(METHOD)


def test_another_memory_than_declared_is_refused_before_and_after_training() -> None:
    forgetful = replace(drifting(METHOD), fit=fit_plain)
    received = forgetful.common_answer(start_of(forgetful))
    with pytest.raises(ProtocolError, match=r"client memory of drifting: expected \['own.rounds \[2\]'\], got \[\]"):
        forgetful.fit_round(Mock(arrays=dict), received)
    with pytest.raises(ProtocolError, match=r"got \['own.rounds \[3\]'\]"):
        forgetful.fit_round(Mock(arrays=dict), received, {"own.rounds": np.zeros(3, np.float32)})


def test_a_mixture_leaves_broadcasts_as_they_came() -> None:
    mixing = replace(build_strategy("lpsfed", METHOD), broadcasts=(TOLD,))
    before, told = start_of(mixing), np.array([1.0, 2.0], np.float32)
    (update,) = updates_of(mixing, 1)
    state = replace(before, latest={update.client: {"rho": 0.1}}, memory={TOLD.name: told})
    answer = mixing.personalise(state, update)
    assert answer.arrays[TOLD.name] is told and answer.arrays.keys() == {*before.arrays, TOLD.name}
    plain = build_strategy("lpsfed", METHOD).personalise(state, update)
    assert digest_arrays({name: answer.arrays[name] for name in before.arrays}) == digest_arrays(plain.arrays)


def test_a_report_of_its_own_may_leave_in_the_open_and_one_that_masks_need_may_not() -> None:
    assert declare_federation(drifting(METHOD), METHOD, secure=False).reports
    with pytest.raises(SettingsError, match=r"server_step\.magnitudes: expected computed"):
        declare_federation(replace(REPORTING, report=lambda leaving, _: leaving), METHOD, secure=False)


def test_a_declaration_without_reports_is_written_as_before() -> None:
    written = FEDAVG.declaration(METHOD).model_dump(mode="json")
    assert set(written) == {"strategy", "tensors", "scalars", "secure"}
    assert Declaration.model_validate_json(declared().model_dump_json()) == declared()
