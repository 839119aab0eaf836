"""The real compose file on a real Docker engine: built, brought up as a user would, looked at, taken down again."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import docker
import httpx
import pytest
from docker.models.containers import Container

ROOT = Path(__file__).parents[2]
PROJECT = "lpsfed-e2e"
LONGEST_SECONDS = 900.0  # for the images to be built and the first run to end, on two cores
SILOS = ("client-1", "client-2", "client-3", "client-4")


def compose_command() -> list[str] | None:
    """`docker compose` where it is installed, else docker-compose."""
    if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0:
        return ["docker", "compose"]
    return ["docker-compose"] if shutil.which("docker-compose") else None


@pytest.fixture(scope="session")
def engine() -> Iterator[docker.DockerClient]:
    if not shutil.which("docker") or compose_command() is None:
        pytest.skip("no docker and compose on this machine")
    try:
        client = docker.from_env(timeout=120)
        client.ping()
    except docker.errors.DockerException as error:
        pytest.skip(f"no Docker engine answers: {type(error).__name__}")
    yield client
    client.close()


@dataclass
class Stack:
    """The project, brought up."""

    engine: docker.DockerClient
    environment: dict[str, str]
    log: Path
    process: subprocess.Popen[bytes]
    began: float
    first_answer: float = 0.0  # seconds from `up` to the first recommendation by a trained model

    def compose(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        command = [*(compose_command() or ()), *arguments]
        return subprocess.run(
            command,
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            check=check,
            timeout=LONGEST_SECONDS,
        )

    def container(self, service: str) -> Container:
        labels = [f"com.docker.compose.project={PROJECT}", f"com.docker.compose.service={service}"]
        (found,) = self.engine.containers.list(all=True, ignore_removed=True, filters={"label": labels})
        return found

    def containers(self) -> dict[str, Container]:
        found = self.engine.containers.list(
            all=True, ignore_removed=True, filters={"label": f"com.docker.compose.project={PROJECT}"}
        )
        return {one.labels["com.docker.compose.service"]: one for one in found}

    def again(self, service: str) -> tuple[int, str]:
        """Run a one-shot service's container once more: its exit code and what it printed this time."""
        container, since = self.container(service), int(time.time())
        container.start()
        code = int(container.wait(timeout=300)["StatusCode"])
        return code, container.logs(since=since).decode()

    def python(self, service: str, code: str) -> str:
        """What a line of Python prints inside a running container."""
        done = self.container(service).exec_run(["python", "-c", code])
        assert done.exit_code == 0, done.output.decode()
        return str(done.output.decode())

    def someone(self, silo: str) -> str:
        """A user of that silo, read where only the silo itself can."""
        code = "import polars as p; print(p.read_parquet('/shard/interactions.parquet')['user'][0])"
        return self.python(silo, code).strip()

    def token(self) -> str:
        return self.python("aggregator", "print(open('/secrets/token').read())").strip()


def _recommended(url: str) -> bool:
    """Does a silo answer by a trained model? Any user will do: an unknown one is told apart."""
    try:
        status = httpx.get(f"{url}/v1/status", timeout=5).json()
    except (httpx.TransportError, ValueError):
        return False
    return status.get("model") is not None


@pytest.fixture(scope="session")
def stack(engine: docker.DockerClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Plain `up`, in the foreground, until the report has been printed."""
    environment = os.environ | {"COMPOSE_PROJECT_NAME": PROJECT, "DOCKER_BUILDKIT": "0"}
    log = tmp_path_factory.mktemp("compose") / "up.log"
    command = [*(compose_command() or ()), "up", "--build"]  # an image of an earlier day would be taken as it is
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT)
    stack = Stack(engine, environment, log, process, time.monotonic())
    try:
        _until_reported(stack)
        yield stack
    finally:
        process.terminate()
        process.wait(120)
        stack.compose("down", "--volumes", "--remove-orphans", "--timeout", "20", check=False)


def _until_reported(stack: Stack) -> None:
    until = time.monotonic() + LONGEST_SECONDS
    while time.monotonic() < until:
        if not stack.first_answer and _recommended("http://127.0.0.1:8801"):
            stack.first_answer = time.monotonic() - stack.began
        report = stack.containers().get("report")
        if report is not None and report.status == "exited":
            return
        if stack.process.poll() is not None:
            raise AssertionError(f"`up` ended by itself:\n{stack.log.read_text()[-3000:]}")
        time.sleep(0.5)
    raise AssertionError(f"no report within {LONGEST_SECONDS:g} s:\n{stack.log.read_text()[-3000:]}")
