"""`LPSFED_SECURE=true docker compose up` with three silos: its aggregator reads the sum alone; and every break in it.

`lpsfed break` plants all kinds at once, the report names each of them, and it holds again after mending.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from simulation.breaks.kinds import known_breaks

if TYPE_CHECKING:
    from conftest import Stack

pytestmark = pytest.mark.containers
ROOT = Path(__file__).parents[3]
BREAKS = known_breaks(3)
SILOS = {f"client-{number}": f"http://127.0.0.1:880{number}" for number in range(1, 4)}
OPERATOR = "http://127.0.0.1:8800"
STEPS = {"keys", "shares", "checks", "consents", "update"}
RED, GREEN = "This evidence does not show that nothing undeclared crossed", "Nothing undeclared crossed, and all that"


def test_one_variable_makes_the_whole_federation_secure_and_its_report_holds(secure_stack: Stack) -> None:
    report = secure_stack.container("report")
    assert report.wait()["StatusCode"] == 0, report.logs(tail=60).decode()
    assert all(read(url, "/v1/declaration")["secure"] for url in SILOS.values())
    token = {"Authorization": f"Bearer {secure_stack.token()}"}
    run = read(OPERATOR, "/v1/runs/run-1", token)
    assert run["phase"] == "finished" and len(run["rounds"]) == 2
    arrivals = read(OPERATOR, "/v1/arrivals?limit=1000", token)["entries"]
    taken = {(one["client"], one["round"], one["call"]) for one in arrivals if one["status"] < httpx.codes.BAD_REQUEST}
    said = {(name, number, step) for name in SILOS for number in (1, 2) for step in STEPS}
    assert {one for one in taken if one[2] not in ("join", "answers")} == said
    assert {number for _, number, call in taken if call == "answers"} == {1, 2}  # whose come after enough are refused


def read(url: str, path: str, headers: dict[str, str] | None = None) -> Any:
    """What a service answers, as JSON."""
    return httpx.get(f"{url}{path}", headers=headers, timeout=10).raise_for_status().json()


def broken(stack: Stack, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "simulation.cli", "break", *arguments]
    environment = {**stack.environment, "COLUMNS": "200"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=1800)


@pytest.mark.slow
def test_every_break_is_named_in_red_and_mended_to_green(secure_stack: Stack) -> None:
    user = secure_stack.someone("client-1")
    done = broken(secure_stack, *BREAKS)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    red, _, green = done.stdout.partition(GREEN)
    assert RED in red and green and "not named" not in done.stdout
    for one in BREAKS.values():
        for wanted in one.faults:
            assert all(part in red for part in wanted.split(", ")), wanted
    _is_as_before(secure_stack, user)


def _is_as_before(stack: Stack, user: str) -> None:
    there = stack.containers()
    assert all(one.attrs["Config"]["User"] == "10001:10001" for one in there.values())
    assert not any(mount["Destination"] == "/spare" for one in there.values() for mount in one.attrs["Mounts"])
    assert not [one for one in stack.engine.volumes.list() if one.name.endswith("_break")]
    kept = "import os; print(os.path.exists('/state/train.parquet'), os.path.exists('/state/changed'))"
    assert stack.python("aggregator", kept) == stack.python("client-2", kept) == "False False\n"
    answer = httpx.get(f"http://127.0.0.1:8801/v1/users/{user}/recommendations", timeout=60).raise_for_status().json()
    assert answer["model"].startswith("run-3.") and answer["items"]
