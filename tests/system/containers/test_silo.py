"""One silo by its own compose file: it joins an aggregator that is elsewhere, trains, answers, and has one way out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import docker
import httpx
import pytest

from simulation.datasets.synthetic import generate_dataset
from simulation.ports import free_port_from
from tests.system.containers.conftest import ROOT, compose_command, knows_start_interval

pytestmark = pytest.mark.containers
PROJECT = "lpsfed-silo-e2e"
# From inside the client: which of these places can be connected to.
REACHED = """
import json, socket, sys
def reached(place):
    try:
        socket.create_connection(tuple(place), 3).close()
        return True
    except OSError:
        return False
print(json.dumps([reached(place) for place in json.loads(sys.argv[1])]))
"""


def lpsfed(folder: Path, *words: object) -> str:
    command = [sys.executable, "-m", "simulation.cli", *map(str, words)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "LPSFED_AGGREGATOR_DEMO": "true"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@contextmanager
def aggregator(folder: Path) -> Iterator[int]:
    """An aggregator of this machine, on all its addresses; its port. Its invitation is for the silo `north`."""
    port = free_port_from(18800)
    url = f"http://host.docker.internal:{port}"
    where = ("--host", "0.0.0.0", "--port", port, "--state-directory", "operator")
    told = lpsfed(folder, "aggregator", *where, "--invite", "north", "--url", url, "--allow-http", "--detach")
    pid = int(told.partition("`kill ")[2].partition("`")[0])
    try:
        yield port
    finally:
        os.kill(pid, 15)


@contextmanager
def silo(folder: Path) -> Iterator[int]:
    """The silo, brought up by its file; its port."""
    file, port = ROOT / "docker-compose.silo.e2e.yml", free_port_from(18900)
    given = ("--invitation", folder / "north.invite", "--data", folder / "sales.csv", "--folder", folder / "north")
    lpsfed(folder, "compose", "--role", "silo", *given, "--port", port, "--allow-http", "--out", file)
    environment = os.environ | {"COMPOSE_PROJECT_NAME": PROJECT, "DOCKER_BUILDKIT": "0"}
    command = compose_command(file) or []
    command = command[:-2] if knows_start_interval() else command  # the file beside the demo's
    try:
        subprocess.run([*command, "up", "--build", "--detach"], cwd=ROOT, env=environment, check=True, timeout=1800)
        yield port
    finally:
        subprocess.run([*command, "down", "--volumes", "--timeout", "5"], cwd=ROOT, env=environment, timeout=300)
        file.unlink()


def test_a_silo_with_a_remote_aggregator_is_one_file_and_one_command(
    engine: docker.DockerClient, tmp_path: Path
) -> None:
    generate_dataset(0, users=120, items=80).events.select("user", "item").write_csv(tmp_path / "sales.csv")
    for path in (*tmp_path.parents, tmp_path):
        if path.is_relative_to("/tmp") and path != Path("/tmp"):
            path.chmod(path.stat().st_mode | 0o055)  # the containers' user looks into it
    with aggregator(tmp_path) as outside, silo(tmp_path) as port:
        run = ("--aggregator-url", f"http://127.0.0.1:{outside}", "--operator-token-file", "operator/operator.token")
        history = json.loads(lpsfed(tmp_path, "run", "--clients", 1, "--rounds", 1, *run, "--json"))
        assert history["phase"] == "finished"
        key = (tmp_path / "north/application.key").read_text().strip()
        headers = {"Authorization": f"Bearer {key}"}
        answer = httpx.get(f"http://127.0.0.1:{port}/v1/model", headers=headers, timeout=30)
        assert answer.json()["run"] == history["run"]
        assert httpx.get(f"http://127.0.0.1:{port}/v1/model", timeout=30).status_code == 401
        assert reached_places(engine, ("host.docker.internal", outside), ("1.1.1.1", 443)) == [True, False]


def reached_places(engine: docker.DockerClient, *places: tuple[str, int]) -> list[bool]:
    labels = [f"com.docker.compose.project={PROJECT}", "com.docker.compose.service=client"]
    (client,) = engine.containers.list(filters={"label": labels})
    found = client.exec_run(["python", "-c", REACHED, json.dumps(places)])
    return list(json.loads(found.output))
