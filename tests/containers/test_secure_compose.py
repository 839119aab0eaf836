"""`LPSFED_SECURE=true docker compose up`: the same federation, whose aggregator reads nothing but the sum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from conftest import Stack

pytestmark = pytest.mark.containers
SILOS = {f"client-{number}": f"http://127.0.0.1:880{number}" for number in range(1, 5)}
OPERATOR = "http://127.0.0.1:8800"
STEPS = {"keys", "shares", "update", "answers"}


def test_one_variable_makes_the_whole_federation_secure_and_its_run_ends(secure_stack: Stack) -> None:
    operator = secure_stack.container("run")
    assert operator.wait()["StatusCode"] == 0, operator.logs(tail=40).decode()
    assert all(read(url, "/v1/declaration")["secure"] for url in SILOS.values())
    report = secure_stack.container("report")
    assert report.wait()["StatusCode"] == 0, report.logs(tail=60).decode()
    token = {"Authorization": f"Bearer {secure_stack.token()}"}
    run = read(OPERATOR, "/v1/runs/run-1", token)
    assert run["phase"] == "finished" and len(run["rounds"]) == 2
    arrivals = read(OPERATOR, "/v1/arrivals?limit=1000", token)["entries"]
    taken = {(one["client"], one["round"], one["call"]) for one in arrivals if one["status"] < httpx.codes.BAD_REQUEST}
    said = {(name, number, step) for name in SILOS for number in (1, 2) for step in STEPS}
    assert {one for one in taken if one[2] != "join"} == said


def read(url: str, path: str, headers: dict[str, str] | None = None) -> Any:
    """What a service answers, as JSON."""
    return httpx.get(f"{url}{path}", headers=headers, timeout=10).raise_for_status().json()
