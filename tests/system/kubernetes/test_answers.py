"""Both services, started with the manifests' environment -> every probe of the manifests is answered."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import httpx
import pytest

from shared.protocol.signing.enrolment import ensure_key_pair
from simulation.experiments.processes import STOP_SECONDS
from simulation.ports import HOST, free_ports
from tests.support.questions import LONGEST_SECONDS

if TYPE_CHECKING:
    from conftest import Document, Environment, Pods, Render, Silos

Placed = Callable[[dict[str, Any], int], dict[str, str]]
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
NOBODY = f"http://{HOST}:9"  # no aggregator: a client is alive and ready without one
ROOT = Path(__file__).parents[3]


@pytest.fixture
def placed(environment: Environment, render: Render, silos: Silos, tmp_path: Path) -> Placed:
    """A pod's environment, with folders here in place of its volumes, on loopback and a free port."""
    silos(1)
    ensure_key_pair("client-1", tmp_path / "state")  # as the demo's init container does

    def place(pod: Document, port: int) -> dict[str, str]:
        mounts = [mount["mountPath"] for mount in pod["spec"]["containers"][0]["volumeMounts"]]
        given = environment(pod, render("demo"))
        found = {name: moved(value, mounts, tmp_path) for name, value in given.items()}
        own = f"LPSFED_{pod['metadata']['name'].upper()}_"
        return found | {f"{own}HOST": HOST, f"{own}PORT": str(port), "LPSFED_CLIENT_AGGREGATOR_URL": NOBODY}

    return place


def moved(value: str, mounts: list[str], root: Path) -> str:
    """A path in a volume -> the same path below `root`; anything else as it is."""
    inside = any(Path(value).is_relative_to(mount) for mount in mounts)
    return str(root / value.strip("/")) if inside else value


@contextmanager
def started(service: str, environment: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A service with no setting but the manifest's; asked to end, and awaited, when the context ends."""
    bare = {name: value for name, value in os.environ.items() if not name.startswith("LPSFED_")}
    with log.open("wb") as output:
        command = [sys.executable, "-m", f"{service}_service"]
        process = subprocess.Popen(command, cwd=ROOT, env=bare | environment, stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


async def answered(http: httpx.AsyncClient, path: str, process: subprocess.Popen[bytes], log: Path) -> bool:
    """As the kubelet asks: again and again until it succeeds, or the service has ended."""
    with anyio.fail_after(LONGEST_SECONDS):
        while process.poll() is None:
            try:
                if (await http.get(path)).is_success:
                    return True
            except httpx.TransportError:
                pass  # not listening yet
            await anyio.sleep(0.05)
    raise AssertionError(log.read_text(encoding="utf-8"))


@pytest.mark.processes
@pytest.mark.anyio
@pytest.mark.parametrize("service", ["aggregator", "client"])
async def test_every_probe_is_answered(
    service: str, placed: Placed, render: Render, pods: Pods, tmp_path: Path
) -> None:
    pod = next(pod for pod in pods(render("demo")) if pod["metadata"]["name"] == service)
    token = tmp_path / "secrets" / "operator" / "token"
    token.parent.mkdir(parents=True)
    token.write_text("token-of-the-tests", encoding="utf-8")
    (port,), log = free_ports(1), tmp_path / "log"
    (container,) = pod["spec"]["containers"]
    with started(service, placed(pod, port), log) as process:
        async with httpx.AsyncClient(base_url=f"http://{HOST}:{port}", trust_env=False) as http:
            for probe in PROBES:
                assert container[probe]["httpGet"]["port"] == container["ports"][0]["name"]
                assert await answered(http, container[probe]["httpGet"]["path"], process, log)
            assert (await http.get("/health/no-such-probe")).status_code == httpx.codes.NOT_FOUND
    assert process.returncode == 0  # SIGTERM, as the kubelet sends it
