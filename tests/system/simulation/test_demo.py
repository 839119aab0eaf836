"""The demo over loopback: its services are real processes, and none is left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner, Result

from shared.method.settings import method_settings
from simulation.cli import app
from simulation.datasets import chain
from simulation.datasets.synthetic import generate_dataset
from simulation.demo import demos_folder, read_start_time, stop_demos
from simulation.experiments.experiment import Experiment
from simulation.experiments.processes import choose_addresses
from simulation.ports import free_ports, is_free
from simulation.reports.joining_value import ALONE, COMMON, CONTENT, STRICT
from tests.support.questions import LONGEST_SECONDS


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


@pytest.fixture(scope="module")
def ratings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small data set as a CSV of pairs."""
    path = tmp_path_factory.mktemp("data") / "ratings.csv"
    generate_dataset(0, users=240, items=160).events.select("user", "item").write_csv(path)
    return path


@pytest.mark.processes
def test_the_demo_trains_over_loopback_and_can_be_left_answering(
    ratings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    options = ("--data", str(ratings), "--clients", "3", "--rounds", "1", "--keep", "--json", "--first-port", "0")
    try:
        shown = json.loads(run("demo", *options).stdout)
        key = Path(shown["key_file"])
        headers = {"Authorization": f"Bearer {key.read_text()}"}
        again = httpx.get(shown["url"], headers=headers, timeout=LONGEST_SECONDS, trust_env=False).json()
        assert httpx.get(shown["url"], timeout=LONGEST_SECONDS, trust_env=False).status_code == 401
        assert key.stat().st_mode & 0o777 == 0o600
        assert set(shown["pages"]) == {"aggregator", "client-1", "client-2", "client-3"}
        for page in shown["pages"].values():
            password = Path(page["password_file"]).read_text()
            opened = httpx.get(page["url"], auth=("operator", password), timeout=LONGEST_SECONDS, trust_env=False)
            assert opened.status_code == 200 and "<html" in opened.text
        ways = {way["name"]: way for way in shown["ways"]}
        assert list(ways)[-3:] == [ALONE, STRICT, COMMON] and ways[ALONE]["bytes"] == 0 < ways[STRICT]["bytes"]
        assert "basis" not in ways[STRICT]["crossed"] and "basis.degrees, basis.pairs" in ways[COMMON]["crossed"]
        assert again == shown["answer"] and len(again["items"]) == 5 and "fallback" not in again
    finally:
        monkeypatch.chdir(tmp_path / "state")  # the list of demos knows it, wherever it was started
        stopped = run("demo", "--stop").stderr
    assert all(f"ended the {name}" in stopped for name in ("aggregator", "client-1", "client-2", "client-3"))
    assert run("demo", "--stop").stderr == ""


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("curl") is None, reason="the line is for curl")
def test_the_demo_shows_a_new_item_in_a_list_and_what_the_shop_gains_that_shares_no_item(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name, value in {"USERS": 240, "ITEMS": 160, "LONE_USERS": 40, "LONE_ITEMS": 80}.items():
        monkeypatch.setattr(chain, name, value)
    try:
        shown = run("demo", "--rounds", "1", "--first-port", "0", "--keep").stdout
        assert CONTENT in shown and "content (3 tensors), in 1 round" in shown
        [lone] = [line for line in shown.splitlines() if "client-4, which shares no item" in line]
        assert "x " in lone and " to " in lone
        [said] = [line for line in shown.splitlines() if line.startswith("Place 10 of the list of ")]
        line = [one for one in shown.splitlines() if one.startswith("curl ")][-1]
        asked = subprocess.run(
            ["bash", "-c", f"{line} -s --noproxy '*'"], capture_output=True, check=True, timeout=LONGEST_SECONDS
        )
        found = json.loads(asked.stdout)
        last = found["items"][-1]
        assert len(found["items"]) == 10 and last["reason"] == "new" and f"{last['item']}, {last['title']}" in said
        assert last["because"][0]["title"] in said and said.startswith(f"Place 10 of the list of {found['user']} ")
        assert not any("reason" in one for one in found["items"][:-1])
    finally:
        run("demo", "--stop")


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("curl") is None, reason="the line is for curl")
def test_the_demo_of_sessions_ends_with_a_line_that_asks_what_comes_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    words = ("--task", "sessions", "--clients", "2", "--rounds", "1", "--first-port", "0")
    try:
        shown = run("demo", *words, "--keep").stdout
        block = shown[shown.index("What joining was worth: MRR@20 over all visits") :]
        assert "demo/1/aggregator.token" in block and block.count("demo/1/operator.key") == 2
        [line] = [one for one in shown.splitlines() if one.startswith("curl ")]
        asked = subprocess.run(
            ["bash", "-c", f"{line} -s --noproxy '*'"], capture_output=True, check=True, timeout=LONGEST_SECONDS
        )
        [found] = json.loads(asked.stdout)["results"]
        assert found["model"].startswith("run-1.") and len(found["items"]) == 5
    finally:
        run("demo", "--stop")


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("curl") is None, reason="the line is for curl")
def test_the_demo_of_nodes_ends_with_a_line_that_asks_for_a_label(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    try:
        shown = run("demo", "--task", "nodes", "--clients", "3", "--first-port", "0", "--keep").stdout
        assert "AUC of each silo, its own test nodes" in shown and "with Gram sums of all silos" in shown
        assert "What joining was worth: AUC, ." in shown
        [line] = [one for one in shown.splitlines() if one.startswith("curl ")]
        asked = subprocess.run(
            ["bash", "-c", f"{line} -s --noproxy '*'"], capture_output=True, check=True, timeout=LONGEST_SECONDS
        )
        answer = json.loads(asked.stdout)
        [found] = answer["results"]
        assert answer["model"].startswith("run-1.") and found["label"] in ("honest", "fraud")
        assert found["neighbours"] and "fallback" not in found
    finally:
        run("demo", "--stop")


@pytest.mark.processes
@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM", "--stop"])
def test_a_demo_that_is_ended_while_it_trains_leaves_no_service_behind(
    how: str, ratings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    words = ["demo", "--data", str(ratings), "--clients", "2", "--rounds", "1000", "--first-port", "0"]
    command = [sys.executable, "-m", "simulation.cli", *words]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    with Path("log").open("w") as log, subprocess.Popen(command, env=environment, stdout=log, stderr=log) as demo:
        wait_for(lambda: list(demos_folder().glob("*.json")) or demo.poll() is not None)
        [record] = [json.loads(path.read_text()) for path in demos_folder().glob("*.json")]
        services = record["services"].values()
        assert len(services) == 3 and all(read_start_time(one["pid"]) == one["began"] for one in services)
        if how == "--stop":
            assert f"demo in {tmp_path / 'demo'}" in stop_demos()
        else:
            demo.send_signal(signal.Signals[how])
        demo.wait(LONGEST_SECONDS)
        wait_for(lambda: not any(read_start_time(one["pid"]) == one["began"] for one in services))
    assert stop_demos() == [] and list(demos_folder().glob("*.json")) == []


def wait_for(what: Callable[[], object]) -> None:
    until = time.monotonic() + LONGEST_SECONDS
    while not what():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.processes
def test_ports_are_the_usual_ones_where_these_are_free() -> None:
    (first,) = free_ports(1)
    experiment = Experiment((Path("a"), Path("b")), Path("run"), method_settings())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        places = choose_addresses(experiment, number)
        assert places.aggregator != f"http://127.0.0.1:{number}"
        assert all(is_free(int(url.rpartition(":")[2])) for url in (places.aggregator, *places.clients.values()))
    assert choose_addresses(experiment, first).aggregator == f"http://127.0.0.1:{first}"
