"""`lpsfed run` as an operator meets it: it starts, follows, comes back, and says why a run has failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from typer.testing import CliRunner

from shared.errors import ConflictError, FederationError
from shared.method.declaration import Declaration, TensorSpec
from shared.method.settings import BasisSettings, MethodSettings
from shared.protocol.problem import ProblemOut
from shared.protocol.schemas import ParticipantOut, RoundOut, RunHistoryOut, RunIn
from shared.protocol.signing.invitation import DeclaredOut
from shared.sums.item_basis import DEGREES, NOISE, PACKED, PAIRS, PRODUCTS, WEIGHTED
from simulation.cli import app
from simulation.operating import operator_calls as subject
from simulation.reports import terminal

if TYPE_CHECKING:
    from conftest import Operate


SOON, SOON_TEXT = "2026-01-01T10:00:00Z", "2026-01-01 10:00:00 UTC"


def history(phase: str = "open", closed: int = 0, **fields: Any) -> RunHistoryOut:
    """run-1 of three rounds, so many of them closed."""
    rounds = tuple(
        RoundOut(number=n, phase="aggregated", opened_at="then", closed_at="now") for n in range(1, closed + 1)
    )
    return RunHistoryOut.model_validate(
        {"run": "run-1", "phase": phase, "request": RunIn(rounds=3), "started_at": "then", "rounds": rounds} | fields
    )


class Aggregator:
    """Plays the operator's side of an aggregator: a list of histories, each look takes the next."""

    method = MethodSettings()  # as the federation has declared it

    def __init__(self, *histories: RunHistoryOut, runs: tuple[RunHistoryOut, ...] = ()) -> None:
        self.histories, self.runs = list(histories), runs
        self.requests: list[httpx.Request] = []
        self.absent = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if self.absent:
            self.absent -= 1
            raise httpx.ConnectError("nobody listens", request=request)
        if request.url.path == "/v1/federation":
            told = DeclaredOut(strategy="lpsfed", secure=False, method=self.method, aggregator="d7" * 32)
            return httpx.Response(200, content=told.model_dump_json())
        if request.url.path == "/v1/runs/run-1":
            found = self.histories.pop(0) if len(self.histories) > 1 else self.histories[0]
            return httpx.Response(200, content=found.model_dump_json())
        if request.method == "POST":
            return httpx.Response(201, content=self.histories[0].model_dump_json())
        return httpx.Response(200, json=[one.model_dump(mode="json") for one in self.runs])


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "POLL_SECONDS", 0.001)


def test_a_run_is_started_as_asked_and_told_round_by_round(operate: Operate) -> None:
    there = Aggregator(history("waiting"), history(closed=1), history(closed=2), history("finished", closed=3))
    done = operate(there, "run", "--clients", "2", "--rounds", "3", "--set", "width=8")
    assert done.exit_code == 0, done.output
    [first] = [one for one in there.requests if one.method == "POST"]
    assert first.method == "POST" and first.headers["authorization"] == "Bearer the operator's token"
    asked = json.loads(first.content)
    assert (asked["clients"], asked["rounds"], asked["method"]["width"]) == (2, 3, 8)
    *lines, over, where = done.stderr.splitlines()
    assert "lpsfed worth --silo NAME/silo.toml" in where
    *lines, last = [line.split(":")[0] for line in (*lines, over)]
    assert lines == ["run-1 waits for clients", *(f"run-1, round {n} of 3" for n in (1, 2, 3))]
    assert last == "run-1 has finished after 3 rounds; each silo serves its best model by validation"


def test_the_run_there_is_is_followed_and_none_is_started(operate: Operate) -> None:
    there = Aggregator(history(closed=2), history("finished", closed=3), runs=(history(),))
    done = operate(there, "run", "--if-none", "--json")
    assert done.exit_code == 0 and json.loads(done.stdout)["phase"] == "finished" and done.stderr == ""
    assert {request.method for request in there.requests} == {"GET"}


@pytest.mark.parametrize(
    "runs",
    [(), (history("failed", reason="nobody came"),), (history("cancelled", reason="the operator has cancelled it"),)],
)
def test_where_there_is_none_or_the_last_has_failed_one_is_started(
    operate: Operate, runs: tuple[RunHistoryOut, ...]
) -> None:
    """What keeps a client away may be over by the second `docker compose up`."""
    there = Aggregator(history("waiting"), history("finished", closed=3), runs=runs)
    assert operate(there, "run", "--if-none").exit_code == 0
    assert [request.method for request in there.requests][:3] == ["GET", "GET", "POST"]


def test_a_failed_run_is_an_error_with_its_reason(operate: Operate) -> None:
    done = operate(Aggregator(history("failed", reason="round 1: 1 of 2 updates")), "run")
    assert done.exit_code == 1 and str(done.exception) == "run-1 failed: round 1: 1 of 2 updates"


def test_a_refused_token_names_the_aggregator_and_what_to_check(operate: Operate) -> None:
    """Another aggregator may listen at the default port."""
    there = operate(lambda request: httpx.Response(401, text="expected the operator's token", request=request), "run")
    assert there.exit_code == 1 and isinstance(there.exception, FederationError)
    said = str(there.exception)
    assert "http://127.0.0.1:8800 refuses this token: check --operator-token-file" in said, said


def test_an_aggregator_that_starts_again_is_waited_for(operate: Operate) -> None:
    there = Aggregator(history("finished", closed=3))
    there.absent = 3
    assert operate(there, "run").exit_code == 0 and len(there.requests) == 6


def test_nobody_there_is_named_in_bounded_time(operate: Operate) -> None:
    there = Aggregator(history())
    there.absent = 10**9
    done = operate(there, "run", "--aggregator-url", "http://127.0.0.1:1", "--wait-seconds", "0.01")
    said = str(done.exception)
    assert done.exit_code == 1 and "http://127.0.0.1:1: expected the aggregator, got ConnectError (nothing" in said
    assert said.endswith("start it, or give its URL)")


def test_whoever_waits_for_the_aggregator_is_told_so_at_once_and_from_time_to_time(
    operate: Operate, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Aggregator(history("finished", closed=3))
    there.absent = 3
    (line,) = operate(there, "run", "--json").stderr.splitlines() or ("nothing with --json",)
    assert line == "nothing with --json"
    there.absent = 3
    first = operate(there, "run").stderr.splitlines()[0]
    assert first.startswith("waiting for the aggregator, 0 of at most 60 s: http://127.0.0.1:8800: expected")
    monkeypatch.setattr(subject, "NOTICE_SECONDS", 0.0)
    there.absent = 3
    told = operate(there, "run").stderr.splitlines()
    assert [line.startswith("waiting for the aggregator") for line in told] == [True] * 3 + [False] * 5


def test_who_is_missing_is_told_at_once_and_again_when_that_has_changed(
    operate: Operate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "CHANGE_SECONDS", 0.0)
    nobody, one = history("waiting", missing=("a", "b")), history("waiting", enrolled=("a",), missing=("b",))
    done = operate(Aggregator(nobody, nobody, one, one, history("finished", closed=3)), "run")
    waits = [line for line in done.stderr.splitlines() if "waits for clients" in line]
    assert [line.partition("missing: ")[2].partition(";")[0] for line in waits] == ["a, b", "b"]


def test_after_a_long_silence_the_round_says_whom_it_waits_for(
    operate: Operate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "QUIET_SECONDS", 0.0)
    now = RoundOut(number=1, phase="open", opened_at="then", missing=("b",), participants=(part("b", received=False),))
    there = Aggregator(history(rounds=(now,), missing=("b",)), history("finished", closed=3))
    done = operate(there, "run")
    assert "run-1, round 1 of 3 is open: 0 of 1 updates, 2 needed; missing: b" in done.stderr


def test_a_start_whose_answer_was_lost_is_followed_and_not_an_error(operate: Operate) -> None:
    """A busy aggregator has heard the first POST, and refuses the second."""
    there = Aggregator(history("finished", closed=3))
    posts = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method != "POST":
            return there(request)
        posts.append(request)
        there.runs = (history(),)
        if len(posts) == 1:
            raise httpx.ReadTimeout("busy", request=request)
        return httpx.Response(409, text="run-1 is open", request=request)

    done = operate(answer, "run", "--if-none")
    assert done.exit_code == 0 and len(posts) == 2, done.output


def test_a_refusal_is_told_as_it_came(operate: Operate) -> None:
    done = operate(lambda request: httpx.Response(409, text="run-1 is open", request=request), "run")
    assert done.exit_code == 1 and str(done.exception) == "GET /v1/federation: 409 run-1 is open"


def test_a_token_that_is_not_there_is_a_matter_of_settings(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["run", "--operator-token-file", str(tmp_path / "none")])
    assert done.exit_code != 0 and "expected a file with the operator's token, got: No such file" in str(done.exception)


def test_secrets_are_made_once_for_their_owner_alone(tmp_path: Path) -> None:
    paths = [tmp_path / "one" / "token", tmp_path / "two"]
    assert CliRunner().invoke(app, ["secret", *map(str, paths)]).exit_code == 0
    made = [path.read_text() for path in paths]
    assert len(set(made)) == 2 and all(
        len(text) == 64 and path.stat().st_mode & 0o777 == 0o600 for text, path in zip(made, paths, strict=True)
    )
    again = CliRunner().invoke(app, ["secret", *map(str, paths)])
    assert "exists already" in again.stderr and [path.read_text() for path in paths] == made


def part(name: str, *, received: bool) -> ParticipantOut:
    return ParticipantOut(client=name, received=received)


def test_the_status_of_an_open_round_names_who_is_missing_and_until_when(operate: Operate) -> None:
    parts = (part("north", received=True), part("south", received=False), part("west", received=False))
    now = RoundOut(number=2, phase="open", opened_at="then", missing=("south", "west"), participants=parts)
    found = history(deadline_at=SOON, missing=("south", "west"), rounds=(now,))
    there = Aggregator(found, runs=(history(),))
    done = operate(there, "status")
    assert (done.exit_code, done.stdout.strip()) == (
        0,
        f"run-1, round 2 of 3 is open: 1 of 3 updates, 2 needed; missing: south, west; until {SOON_TEXT}",
    )
    assert {request.method for request in there.requests} == {"GET"}


def test_the_status_of_a_run_that_waits_says_who_is_registered_and_not_there(operate: Operate) -> None:
    found = history("waiting", deadline_at=SOON, enrolled=("north",), missing=("south",))
    done = operate(Aggregator(found), "status", "--run", "run-1")
    expected = f"run-1 waits for clients: 1 of 2 clients have joined; missing: south; until {SOON_TEXT}"
    assert (done.exit_code, done.stdout.strip()) == (0, expected)


def test_a_run_that_waits_for_more_clients_than_there_are_says_what_to_do(operate: Operate) -> None:
    found = history("waiting", enrolled=("north",), missing=("south",), request=RunIn(rounds=3, clients=4))
    done = operate(Aggregator(found, history("finished", closed=3)), "run", "--clients", "4")
    assert "only 2 are registered: register 2 more, or cancel it and start one with --clients 2" in done.stderr
    nobody = history("waiting", deadline_at=SOON, enrolled=(), missing=(), request=RunIn(rounds=3, clients=4))
    done = operate(Aggregator(nobody), "status", "--run", "run-1")
    expected = f"0 of 4 clients have joined; none is registered: register 4 more, or cancel it; until {SOON_TEXT}"
    assert done.stdout.strip() == f"run-1 waits for clients: {expected}"


def test_ctrl_c_says_that_the_run_goes_on_and_how_to_follow_and_end_it(operate: Operate) -> None:
    there = Aggregator(history(closed=1))

    def answer(request: httpx.Request) -> httpx.Response:
        if sum(one.url.path == "/v1/runs/run-1" for one in there.requests) == 2:
            raise KeyboardInterrupt
        return there(request)

    for words in (("run",), ("status", "--follow", "--run", "run-1")):
        there.requests.clear()
        done = operate(answer, *words, "--aggregator-url", "http://127.0.0.1:8899")
        assert done.exit_code == 130
        said = done.stderr[done.stderr.index("interrupted") :]
        assert said.startswith("interrupted: run-1 continues at the aggregator\nto follow it: lpsfed status --follow")
        assert said.count("--run run-1 --operator-token-file ") == 2 and "to end it: lpsfed cancel --run run-1" in said
        assert said.count("--aggregator-url http://127.0.0.1:8899") == 2


def test_a_second_run_is_refused_with_how_to_follow_and_end_the_first(operate: Operate) -> None:
    there = Aggregator(history(), runs=(history(),))

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method != "POST":
            return there(request)
        problem = ProblemOut(title="Conflict", status=409, code="conflict", detail="run-1 is open", request_id="r")
        return httpx.Response(409, content=problem.model_dump_json())

    done = operate(answer, "run")
    assert done.exit_code == 1 and isinstance(done.exception, ConflictError)
    said = str(done.exception)
    assert "409 run-1 is open" in said and "lpsfed status --follow --run run-1" in said
    assert "lpsfed cancel --run run-1" in said


def test_status_follows_a_run_to_its_end(operate: Operate) -> None:
    there = Aggregator(history("waiting"), history(closed=1), history("finished", closed=3), runs=(history(),))
    done = operate(there, "status", "--follow")
    assert done.exit_code == 0 and "run-1, round 3 of 3" in done.stderr and "finished" in done.stdout
    cut = operate(Aggregator(history(), history("cancelled", closed=1), runs=(history(),)), "status", "--follow")
    assert cut.exit_code == 0
    assert cut.stdout.strip() == "run-1 is cancelled: the operator has ended it after 1 of 3 rounds"
    lost = operate(Aggregator(history(), history("cancelled", closed=1)), "run")
    assert lost.exit_code == 1 and "run-1 is cancelled" in str(lost.exception)


def test_a_run_is_cancelled_the_newest_where_none_is_named(operate: Operate) -> None:
    there = Aggregator(history("cancelled", reason="the operator has cancelled it"), runs=(history(),))
    for named in ((), ("--run", "run-1")):
        done = operate(there, "cancel", *named)
        said = "run-1 is cancelled: the operator has ended it before its first round"
        assert (done.exit_code, done.stdout.strip()) == (0, said)
        assert (there.requests[-1].method, there.requests[-1].url.path) == ("DELETE", "/v1/runs/run-1")
    assert json.loads(operate(there, "cancel", "--json").stdout)["phase"] == "cancelled"
    none = operate(Aggregator(history()), "cancel")
    assert none.exit_code == 1 and str(none.exception).startswith("expected a run to cancel")


def test_a_refusal_is_told_in_the_words_of_its_problem_document(operate: Operate) -> None:
    problem = {"title": "Conflict", "status": 409, "detail": "run-1 has ended", "code": "conflict"}
    done = operate(lambda _: httpx.Response(409, json=problem), "cancel", "--run", "run-1")
    assert str(done.exception) == "DELETE /v1/runs/run-1: 409 run-1 has ended"


def test_the_status_of_a_failed_run_is_an_error_with_its_reason(operate: Operate) -> None:
    there = Aggregator(history("failed", reason="round 1: 1 of 2 updates"), runs=(history(),))
    done = operate(there, "status")
    assert done.exit_code == 1 and str(done.exception) == "run-1 has failed: round 1: 1 of 2 updates"
    told = operate(there, "status", "--json")
    assert told.exit_code == 1 and json.loads(told.stdout)["reason"] == "round 1: 1 of 2 updates"


def test_where_there_has_been_no_run_or_it_is_over_the_status_says_so(operate: Operate) -> None:
    assert operate(Aggregator(history()), "status").stdout.strip() == "no run yet"
    over = Aggregator(history("finished", closed=3), runs=(history(),))
    assert operate(over, "status").stdout.strip() == "run-1, round 3 of 3: finished"


class Summing(Aggregator):
    """An aggregator that has declared a common basis of five items; each run it is asked for is over at once."""

    def __init__(self, *kinds: str) -> None:
        super().__init__(history("finished", closed=3))
        self.asked: list[RunIn] = []
        sums = {"exact": TensorSpec(name=PAIRS, dtype="U32", shape=(10,))}
        sums["iterated"] = TensorSpec(name=PRODUCTS, dtype="U32", shape=(5, 2))
        sums["packed"] = TensorSpec(name=PACKED, dtype="U32", shape=(5, 2))
        sums["noised"] = TensorSpec(name=WEIGHTED, dtype="U32", shape=(15,))
        beside = TensorSpec(name=NOISE, shape=(1,), dtype="U32") if kinds == ("noised",) else None
        tensors = (beside or TensorSpec(name=DEGREES, dtype="U32", shape=(5,)), *(sums[kind] for kind in kinds))
        basis = Declaration(strategy="common_basis", tensors=tensors, scalars=()) if kinds else None
        self.declaration = Declaration(strategy="lpsfed", tensors=(), scalars=(), basis=basis)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/declaration":
            return httpx.Response(200, content=self.declaration.model_dump_json())
        if request.method == "POST":
            self.asked.append(RunIn.model_validate_json(request.content))
            self.runs = (*self.runs, history("finished", closed=3, request=self.asked[-1]))
        return super().__call__(request)


@pytest.mark.parametrize(("kind", "rank"), [("exact", 128), ("iterated", 2)])
def test_one_command_holds_the_basis_run_and_then_the_training_run(operate: Operate, kind: str, rank: int) -> None:
    there, flags = Summing(kind), ("run", "--clients", "3", "--common-basis", kind)
    assert operate(there, *flags).exit_code == 0
    assert [asked.part for asked in there.asked] == ["basis", "training"]
    assert all(asked.method.catalogue == 5 and asked.method.basis.rank == rank for asked in there.asked)
    assert operate(there, *flags).exit_code == 0, "the basis that is there is used again"
    assert [asked.part for asked in there.asked] == ["basis", "training", "training"]
    assert operate(there, *flags, "--renew-basis").exit_code == 0
    assert [asked.part for asked in there.asked[3:]] == ["basis", "training"]
    assert operate(there, *flags, "--if-none").exit_code == 0 and len(there.asked) == 5
    assert operate(there, "run", "--clients", "3", "--if-none", "--common-basis", "off").exit_code == 0
    assert there.asked[5:] and there.asked[5].method.basis.kind == "off", "the strict run is another one"


def test_without_a_flag_a_run_does_what_the_federation_declares(operate: Operate) -> None:
    """Its own kind, rounds and rank of the basis; one round where nothing is trained; and the strict run by a flag."""
    there = Summing("packed")
    basis = BasisSettings(kind="iterated", rank=4, words=2, rounds=5)
    there.method = MethodSettings(catalogue=5, basis=basis, strategy={"train": False})
    assert operate(there, "run", "--clients", "3").exit_code == 0
    assert [(one.part, one.rounds, one.method.basis) for one in there.asked] == [
        ("basis", 1, basis),
        ("training", 1, basis),
    ]
    assert all(one.method.catalogue == 5 and one.method.strategy == {} for one in there.asked)
    assert operate(there, "run", "--rounds", "7", "--set", "basis.least_pairs=9").exit_code == 0
    assert there.asked[-1].rounds == 7 and there.asked[-1].method.basis.least_pairs == 9
    assert there.asked[-1].method.basis.rounds == 5
    assert operate(there, "run", "--common-basis", "off").exit_code == 0
    assert there.asked[-1].method.basis.kind == "off" and there.asked[-2].part == "training"
    trained = Summing()
    assert operate(trained, "run").exit_code == 0
    assert [(one.part, one.rounds) for one in trained.asked] == [("training", 10)]


def test_the_words_of_an_item_are_those_that_the_federation_has_declared(operate: Operate) -> None:
    there = Summing("packed")
    assert operate(there, "run", "--clients", "3", "--common-basis", "iterated", "--rank", "4").exit_code == 0
    assert [(one.method.basis.words, one.method.basis.rank) for one in there.asked] == [(2, 4), (2, 4)]


def test_a_noised_sum_is_the_exact_one_with_an_epsilon(operate: Operate) -> None:
    there, flags = Summing("noised"), ("--common-basis", "exact", "--set", "basis.epsilon=8")
    assert operate(there, "run", "--clients", "3", *flags).exit_code == 0
    assert [(one.part, one.method.catalogue) for one in there.asked] == [("basis", 5), ("training", 5)]


@pytest.mark.parametrize(("declared", "words"), [((), "got one without"), (("iterated",), "expected iterated")])
def test_a_basis_that_the_federation_has_not_declared_is_refused(
    operate: Operate, declared: tuple[str, ...], words: str
) -> None:
    there = Summing(*declared)
    done = operate(there, "run", "--common-basis", "exact")
    assert done.exit_code != 0 and words in str(done.exception) and there.asked == []
