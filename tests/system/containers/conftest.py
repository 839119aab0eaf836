"""The real compose file on a real Docker engine: built, brought up as a user would, looked at, taken down again."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import docker
import httpx
import pytest
from docker.models.containers import Container

from simulation.deployment.compose import MAIN, write_compose

ROOT = Path(__file__).parents[3]
PROJECT = "lpsfed-e2e"
SECURE_SILOS = 3  # the fewest; and another number than that of the checked-in file
LONGEST_SECONDS = 3600.0  # for the images to be built and the first run to end, on a busy machine
BUSY = int(os.environ.get("LPSFED_E2E_BUSY", "0"))  # loops that take a core each while `up` is going on
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def compose_command(file: Path = ROOT / MAIN) -> list[str] | None:
    """`docker compose` where it is installed, else docker-compose; with `start_interval` where both know the word."""
    where = ["--project-directory", str(ROOT), "--file", str(file)]
    if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode != 0:
        return ["docker-compose", *where] if shutil.which("docker-compose") else None
    added = ["--file", str(file.with_suffix(".start-interval.yml"))] if knows_start_interval() else []
    return ["docker", "compose", *where, *added]


def knows_start_interval() -> bool:
    """Docker Engine 25 and Compose 2.21 were the first."""
    asked = (["docker", "version", "--format", "{{.Server.Version}}"], ["docker", "compose", "version", "--short"])
    engine, compose = (subprocess.run(one, capture_output=True, text=True, check=False).stdout for one in asked)
    return _numbers(engine) >= (25,) and _numbers(compose) >= (2, 21)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])


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
    """The project, brought up by a compose file."""

    engine: docker.DockerClient
    file: Path
    environment: dict[str, str]
    log: Path
    process: subprocess.Popen[bytes]
    began: float
    first_answer: float = 0.0  # seconds from `up` to the first recommendation by a trained model

    def compose(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*(compose_command(self.file) or ()), *arguments]
        return subprocess.run(
            command,
            cwd=ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            check=True,
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
        return code, COLOURS.sub("", container.logs(since=since).decode())

    def printed(self, service: str) -> str:
        """All that a service has said, without colours."""
        return COLOURS.sub("", self.container(service).logs().decode())

    def python(self, service: str, code: str) -> str:
        """What a line of Python prints inside a running container."""
        done = self.container(service).exec_run(["python", "-c", code])
        assert done.exit_code == 0, done.output.decode()
        return str(done.output.decode())

    def someone(self, silo: str) -> str:
        """A user of that silo, read where only the silo itself can."""
        code = "import polars as p; print(p.read_parquet('/shard/interactions.parquet')['user'][0])"
        return self.python(silo, code).strip()

    def describe_containers(self) -> str:
        """How each container stands, and what the long-lived ones said last: why a test failed."""
        return "\n".join(_describe(name, one) for name, one in sorted(self.containers().items()))

    def token(self) -> str:
        return self.python("aggregator", "print(open('/secrets/token').read())").strip()


def _describe(name: str, container: Container) -> str:
    state, restarts = container.attrs["State"], container.attrs["RestartCount"]
    told = f"{name}: {state['Status']}, exit code {state['ExitCode']}, killed for memory: {state['OOMKilled']}"
    last = container.logs(tail=8).decode(errors="replace") if state["Running"] or state["ExitCode"] else ""
    return f"{told}, restarts: {restarts}, since {state['StartedAt']}\n{COLOURS.sub('', last)}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test's report says how the containers stand: they are gone when somebody reads it."""
    report = yield
    for stack in getattr(item, "funcargs", {}).values():
        if report.failed and isinstance(stack, Stack):
            report.sections.append(("containers", stack.describe_containers()))
    return report


def _recommended(url: str) -> bool:
    """Does a silo answer by a trained model? Any user will do: an unknown one is told apart."""
    try:
        status = httpx.get(f"{url}/v1/status", timeout=5).json()
    except (httpx.TransportError, ValueError):
        return False
    return status.get("model") is not None


@pytest.fixture(scope="module")  # the ports are the same in each, so one is taken down before the next comes up
def stack(engine: docker.DockerClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with brought_up(engine, tmp_path_factory.mktemp("compose")) as up:
        yield up


@pytest.fixture(scope="module")
def secure_stack(engine: docker.DockerClient, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Three silos with secure aggregation, as their user turns it on, after two rounds."""
    folder = tmp_path_factory.mktemp("secure")
    file, *_ = write_compose(SECURE_SILOS, folder / MAIN)
    with brought_up(engine, folder, file, LPSFED_SECURE="true", LPSFED_ROUNDS="2") as up:
        yield up


@contextmanager
def brought_up(engine: docker.DockerClient, folder: Path, file: Path = ROOT / MAIN, **chosen: str) -> Iterator[Stack]:
    """Plain `up`, in the foreground, until the report has been printed. `chosen`: variables of its user."""
    environment = os.environ | {"COMPOSE_PROJECT_NAME": PROJECT, "DOCKER_BUILDKIT": "0"} | chosen
    log, compose = folder / "up.log", compose_command(file) or ()
    # Containers that a killed run has left would be taken as they are, with its folder and its volumes.
    leave_none = [*compose, "down", "--volumes", "--remove-orphans", "--timeout", "20"]
    subprocess.run(leave_none, cwd=ROOT, env=environment, capture_output=True, check=True, timeout=LONGEST_SECONDS)
    command = [*compose, "up", "--build"]  # an earlier day's image would be taken as it is
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
    stack = Stack(engine, file, environment, log, process, time.monotonic())
    try:
        with busy(BUSY):
            _until_ended(stack)
        yield stack
    finally:
        process.terminate()
        process.wait(120)
        stack.compose("down", "--volumes", "--remove-orphans", "--timeout", "20")


@contextmanager
def busy(count: int) -> Iterator[None]:
    """So many loops beside the body, each of which would have a core for itself."""
    loops = [subprocess.Popen(["sh", "-c", "while :; do :; done"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def _until_ended(stack: Stack) -> None:
    until = time.monotonic() + LONGEST_SECONDS
    while time.monotonic() < until:
        if not stack.first_answer and _recommended("http://127.0.0.1:8801"):
            stack.first_answer = time.monotonic() - stack.began
        last = stack.containers().get("report")
        if last is not None and last.status == "exited":
            return
        if stack.process.poll() is not None:
            raise AssertionError(f"`up` ended by itself:\n{stack.log.read_text()[-3000:]}")
        time.sleep(0.5)
    raise AssertionError(f"no end of the report within {LONGEST_SECONDS:g} s:\n{stack.log.read_text()[-3000:]}")
