"""`lpsfed run` holds every sum that the federation declares, and says what each has cost or why it is not opened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

from shared.method.declaration import Declaration, TensorSpec
from shared.method.settings import BasisSettings, MethodSettings
from shared.protocol.schemas import RoundOut, RunHistoryOut, RunIn, SummedOut
from shared.protocol.signing.invitation import DeclaredOut
from shared.sums.common_items import HELD
from shared.sums.item_basis import DEGREES, PAIRS
from simulation.operating import operator_calls as subject

if TYPE_CHECKING:
    from conftest import Operate

LISTED = {
    "items": BasisSettings(kind="items"),
    "content": BasisSettings(kind="content"),
    "basis_exact": BasisSettings(kind="exact", places=64),
}
ALONE = {"train": False, "send": False}
FEW = "round 1: expected 3 silos or more with something to add, got 1 of 3"
THEN, NOW = "2026-11-26T12:00:00+00:00", "2026-11-26T12:00:02+00:00"


class Federation:
    """Plays the operator's side of a federation that shares sums. few: one silo alone knows titles."""

    def __init__(self, method: MethodSettings, *, common: int = 9, few: bool = False) -> None:
        self.method, self.common, self.few = method, common, few
        self.runs: list[RunHistoryOut] = []

    @property
    def parts(self) -> list[str]:
        return [one.request.part for one in self.runs]

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path == "/v1/federation":
            told = DeclaredOut(strategy="lpsfed", secure=True, method=self.method, aggregator="d7" * 32)
            return httpx.Response(200, content=told.model_dump_json())
        if path == "/v1/declaration":
            return httpx.Response(200, content=self._declare().model_dump_json())
        if request.method == "POST":
            return self._start(RunIn.model_validate_json(request.content))
        if path == "/v1/runs":
            return httpx.Response(200, json=[one.model_dump(mode="json") for one in self.runs])
        (found,) = [one for one in self.runs if path == f"/v1/runs/{one.run}"]
        return httpx.Response(200, content=found.model_dump_json())

    def _start(self, asked: RunIn) -> httpx.Response:
        if asked.part.startswith("basis") and "items" in self.method.sums:
            if not self.common:
                return httpx.Response(422, json={"code": "protocol", "detail": "expected items that two silos have"})
            chosen = self.method.sums["basis_exact"]
            asked = asked.model_copy(update={"part": "basis_exact", "items": "run-1"})
            asked = asked.model_copy(update={"method": MethodSettings(basis=chosen, catalogue=64)})
        content = asked.part == "content"
        asked = asked.model_copy(update={"makes_models": content and not self.common})
        failed = content and self.few
        told = SummedOut(kind=asked.method.basis.kind, reason="so", opened=not failed, bytes=2000, seconds=1.5)
        if asked.part == "items":
            told = told.model_copy(update={"common": self.common})
        closed = RoundOut(number=1, phase="finished", opened_at=THEN, closed_at=NOW)
        values: dict[str, Any] = {"run": f"run-{len(self.runs) + 1}", "request": asked, "started_at": THEN}
        values |= {"phase": "failed", "reason": FEW} if failed else {"phase": "finished", "rounds": (closed,)}
        self.runs.append(RunHistoryOut(**values, sum=None if asked.part == "training" else told))
        return httpx.Response(201, content=self.runs[-1].model_dump_json())

    def _declare(self) -> Declaration:
        tensors = {"items": HELD, "content": "content.pairs", "basis_exact": PAIRS, "basis": PAIRS}
        sums = {}
        for part in (*self.method.sums, *(["basis"] if self.method.basis.kind != "off" else [])):
            own = TensorSpec(name=tensors[part], dtype="U32", shape=(10,))
            both = (TensorSpec(name=DEGREES, dtype="U32", shape=(5,)), own) if part.startswith("basis") else (own,)
            word = {"items": "item_list", "content": "content"}.get(part, "common_basis")
            sums[part] = Declaration(strategy=word, tensors=both, scalars=(), secure=True)
        return Declaration(strategy="lpsfed", tensors=(), scalars=(), secure=True, sums=sums)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "POLL_SECONDS", 0.001)


@pytest.mark.parametrize("flags", [(), ("--common-basis", "exact")])
def test_over_a_list_of_common_items_no_other_sum_is_dropped(operate: Operate, flags: tuple[str, ...]) -> None:
    there = Federation(MethodSettings(sums=LISTED, strategy=ALONE))
    done = operate(there, "run", "--clients", "3", *flags)
    assert done.exit_code == 0 and there.parts == ["items", "content", "basis_exact"], done.output
    assert "run-1, common items: so; 9 items in common; 2\N{NO-BREAK SPACE}kB of all silos in 1.5 s" in done.stderr
    assert "run-2, content sums: so; 2\N{NO-BREAK SPACE}kB" in done.stderr and "run-3 has finished" in done.stderr
    stood = operate(there, "status").stdout.splitlines()
    assert [line.split(":")[0] for line in stood[1:]] == [
        "run-1, common items",
        "run-2, content sums",
        "run-3, common basis",
    ]


@pytest.mark.parametrize("flags", [(), ("--common-basis", "exact")])
def test_over_a_given_list_no_other_sum_is_dropped(operate: Operate, flags: tuple[str, ...]) -> None:
    basis, sums = BasisSettings(kind="exact"), {"content": BasisSettings(kind="content")}
    there = Federation(MethodSettings(basis=basis, catalogue=5, sums=sums, strategy=ALONE))
    done = operate(there, "run", "--clients", "3", *flags)
    assert done.exit_code == 0 and there.parts == ["content", "basis"], done.output


def test_sums_of_items_go_on_where_too_few_know_titles(operate: Operate) -> None:
    there = Federation(MethodSettings(sums=LISTED, strategy=ALONE), few=True)
    done = operate(there, "run", "--clients", "3")
    assert done.exit_code == 0 and there.parts == ["items", "content", "basis_exact"], done.output
    assert f"run-2, content sums: not opened: {FEW}" in done.stderr and "run-3 has finished" in done.stderr
    assert f"run-2, content sums: not opened: {FEW}" in operate(there, "status").stdout
    again = operate(there, "run", "--clients", "3")
    assert again.exit_code == 0 and there.parts == ["items", "content", "basis_exact", "content"], again.output
    stood = operate(there, "status")
    assert stood.exit_code == 0 and stood.stdout.startswith("run-3, common basis"), stood.output
    assert operate(there, "status", "--run", "run-4").exit_code == 1


def test_with_no_item_in_common_the_content_sums_are_the_last(operate: Operate) -> None:
    there = Federation(MethodSettings(sums=LISTED, strategy=ALONE), common=0)
    done = operate(there, "run", "--clients", "3")
    assert done.exit_code == 0 and there.parts == ["items", "content"], done.output
    assert "run-1, common items: so; 0 items in common" in done.stderr and "run-2 has finished" in done.stderr
    both = Federation(MethodSettings(sums=LISTED), common=0)
    assert operate(both, "run", "--clients", "3").exit_code == 0
    assert both.parts == ["items", "content", "training"] and both.runs[-1].request.method.basis.kind == "off"


def test_with_neither_items_nor_titles_nothing_is_opened_and_the_error_says_both(operate: Operate) -> None:
    there = Federation(MethodSettings(sums=LISTED, strategy=ALONE), common=0, few=True)
    done = operate(there, "run", "--clients", "3")
    assert done.exit_code != 0 and there.parts == ["items", "content"]
    told = str(done.exception)
    assert "expected items with the same id" in told and FEW in told and "catalogue match" in told
