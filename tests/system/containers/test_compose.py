"""What `docker compose up` promises: it ends with a report, everything keeps serving, and nobody finds a way out.

Needs a Docker engine; run by `make e2e-compose`. Timings are printed, not asserted.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from shared.protocol.schemas import RunIn
from simulation.operating.operator import follow_run
from simulation.operating.operator_calls import open_operator

if TYPE_CHECKING:
    from conftest import Stack

pytestmark = pytest.mark.containers
SILOS = {f"client-{number}": f"http://127.0.0.1:880{number}" for number in range(1, 5)}
OPERATOR = "http://127.0.0.1:8800"
SERVING = {"aggregator", "gateway", *SILOS, *(f"gateway-{number}" for number in range(1, 5))}
ENGINE_SECONDS = 900.0
MOST_ABOVE_BASE = 250e6  # bytes of the aggregator's image above the one that it is built upon


def test_up_builds_trains_and_ends_with_a_report_that_holds(stack: Stack) -> None:
    report, text = stack.container("report"), stack.printed("report")
    print(f"\nfirst recommendation by a trained model {stack.first_answer:.0f} s after `up`, images built included")
    print(text)
    assert report.wait()["StatusCode"] == 0
    assert "Nothing undeclared crossed, and all that crossed is on record" in text
    ways = dict(re.findall(r"^ *(popularity|alone|LPSFed, strict boundary|with the common basis) +(\.\d+)", text, re.M))
    assert len(ways) == 4 and ways["with the common basis"] > ways["alone"] > ways["popularity"]
    assert "with the common basis: basis.degrees, basis.pairs, in 1 round; pooling (4 tensors)" in text
    assert "report" in stack.log.read_text() and "Nothing undeclared crossed" in stack.log.read_text()


def test_the_end_shows_a_break_turning_red_and_lines_that_can_be_typed(stack: Stack) -> None:
    red, _, rest = stack.printed("report").partition("The report with all evidence:")
    assert "1. A deliberate break" in red and "This evidence does not show that nothing undeclared crossed" in red
    assert "client-1, update of run-3 round 5, refused with 422: not on the ledger" in red
    green, _, lines = rest.partition("4. See for yourself")
    assert "2. What crossed" in green and "NOT HELD" not in green
    assert max(len(part.splitlines()) for part in (red, *green.split("3. What joining is worth"), lines)) < 50
    pages, typed = re.findall(r"^ +(http\S+)", lines, flags=re.M), re.findall(r"curl '?(http[^\s']+)", lines)
    assert len(pages) == 2 and len(typed) == 2
    for url in typed:
        answer = httpx.get(url, timeout=60)
        assert answer.is_success and "fallback" not in answer.text, url
    assert [httpx.get(url, timeout=60).status_code for url in pages] == [401, 200]


def test_a_health_check_finds_a_service_that_stands_still(stack: Stack) -> None:
    check = stack.engine.images.get("lpsfed/client:0.2.0").attrs["Config"]["Healthcheck"]["Test"][1:]
    client = stack.container("client-1")
    assert client.exec_run(check).exit_code == 0
    pid = stack.python("client-1", FIND_SERVICE).strip()
    client.exec_run(["sh", "-c", f"kill -STOP {pid}"])
    try:
        until = time.monotonic() + ENGINE_SECONDS
        while (found := client.exec_run(check)).exit_code == 0:
            assert time.monotonic() < until
            time.sleep(1)
    finally:
        client.exec_run(["sh", "-c", f"kill -CONT {pid}"])
    assert b"got one that ended" in found.output


FIND_SERVICE = """
import pathlib
for one in pathlib.Path('/proc').glob('[0-9]*/cmdline'):
    if b'-m\\0client_service\\0--server' in one.read_bytes():
        print(one.parent.name)
"""


def test_between_client_and_aggregator_nobody_speaks_plainly(stack: Stack) -> None:
    code = "import httpx; print(httpx.get('http://aggregator:8800/health/live', timeout=30).status_code)"
    assert stack.container("client-1").exec_run(["python", "-c", code]).exit_code != 0
    by_tls = CALL_BY_TLS.format(authority="/public/authority.crt")
    assert stack.python("client-1", by_tls) == "200\n"
    assert stack.container("client-1").exec_run(["python", "-c", CALL_BY_TLS.format(authority="")]).exit_code != 0


CALL_BY_TLS = """
import httpx, ssl
believed = ssl.create_default_context(cafile='{authority}' or None)
print(httpx.get('https://aggregator:8800/health/live', timeout=30, verify=believed).status_code)
"""


def test_images_are_what_they_should_be(stack: Stack) -> None:
    sizes = {}
    base = stack.engine.images.get(os.environ.get("LPSFED_BASE_IMAGE", "python:3.11-slim-bookworm")).attrs["Size"]
    for name in ("aggregator", "client", "tools"):
        image = stack.engine.images.get(f"lpsfed/{name}:0.2.0")
        sizes[name] = image.attrs["Size"]
        assert image.attrs["Config"]["User"] == "10001:10001"
        assert name == "tools" or image.attrs["Config"]["Healthcheck"]["Test"]
    assert sizes["aggregator"] - base < MOST_ABOVE_BASE
    print({name: f"{size / 1e6:.0f} MB, {(size - base) / 1e6:.0f} MB above the base" for name, size in sizes.items()})
    lacking = "import importlib.util as u; print([m for m in {} if u.find_spec(m)])"
    assert (
        stack.python("aggregator", lacking.format(["torch", "polars", "httpx", "client_service", "simulation", "pip"]))
        == "[]\n"
    )
    ours, tools = ["aggregator_service", "simulation", "audit"], ["pip", "sqlalchemy", "matplotlib", "optuna", "rich"]
    assert stack.python("client-1", lacking.format([*ours, *tools])) == "[]\n"
    print("torch in the client's image:", stack.python("client-1", "import torch; print(torch.__version__)").strip())
    kept = "import os; print([name for _, _, names in os.walk('/opt') for name in names if name.endswith('.whl')])"
    assert all(stack.python(name, kept) == "[]\n" for name in ("aggregator", "client-1"))
    compilers = "import shutil; print([c for c in ('gcc', 'cc', 'g++', 'make') if shutil.which(c)])"
    assert stack.python("client-1", compilers) == stack.python("aggregator", compilers) == "[]\n"


def test_everything_keeps_serving_and_every_silo_recommends(stack: Stack) -> None:
    there = stack.containers()
    assert {name for name, one in there.items() if one.status == "running"} == SERVING
    for silo, url in SILOS.items():
        user = stack.someone(silo)
        answer = httpx.get(f"{url}/v1/users/{user}/recommendations", params={"k": 5}, timeout=10).json()
        assert answer["model"].startswith("run-3.") and len(answer["items"]) == 5 and "fallback" not in answer
        assert httpx.get(f"{url}/health/ready", timeout=10).is_success
        assert "text/html" in httpx.get(url, timeout=10).headers["content-type"]
    assert httpx.get(OPERATOR, timeout=10).status_code == 401
    assert httpx.get(OPERATOR, auth=("operator", stack.token()), timeout=10).is_success


def test_every_container_is_confined_and_publishes_on_loopback_alone(stack: Stack) -> None:
    for name, container in stack.containers().items():
        host = container.attrs["HostConfig"]
        assert host["ReadonlyRootfs"] and host["CapDrop"] == ["ALL"] and not host["Privileged"], name
        assert "no-new-privileges:true" in host["SecurityOpt"] and host["Memory"] > 0 and host["PidsLimit"] > 0, name
        assert container.attrs["Config"]["User"] == "10001:10001", name
        assert not any("docker.sock" in mount["Source"] for mount in container.attrs["Mounts"]), name
        addresses = {one["HostIp"] for bound in (host["PortBindings"] or {}).values() for one in bound}
        assert addresses <= {"127.0.0.1"}, name


def test_a_shard_is_in_the_volume_of_its_own_client_alone(stack: Stack) -> None:
    holders: dict[str, set[str]] = {}
    for name, container in stack.containers().items():
        for mount in container.attrs["Mounts"]:
            holders.setdefault(mount.get("Name", ""), set()).add(name)
            may_write = name == "partition" or re.fullmatch(r"client-\d", name)
            assert mount["RW"] is False or "shard" not in mount.get("Name", "") or may_write
    for number in range(1, 5):
        own = {"partition", f"client-{number}", f"probe-client-{number}"}
        assert holders[f"lpsfed-e2e_shard-{number}"] == own
        assert holders[f"lpsfed-e2e_secret-{number}"] == {"secrets", *own} - {"partition"}
        assert holders[f"lpsfed-e2e_state-{number}"] == own - {"partition"}


def outside(resolver: Path = Path("/etc/resolv.conf")) -> str:
    """A place beyond this machine that an ordinary container reaches: the name server that the machine itself asks."""
    lines = [line.split() for line in resolver.read_text().splitlines()]
    found = [words[1] for words in lines if words[:1] == ["nameserver"] and not words[1].startswith("127.")]
    if not found:
        pytest.skip("this machine has no name server beyond itself to try")
    return found[0]


CONNECT = "import socket; socket.create_connection(({host!r}, 53), 3); print('connected')"


def test_what_an_ordinary_container_reaches_no_client_and_no_gateway_does(stack: Stack) -> None:
    code = CONNECT.format(host=outside())
    free = stack.engine.containers.run("lpsfed/tools:0.2.0", ["-c", code], entrypoint="python", remove=True)
    assert free == b"connected\n"  # else the rest of this test would show nothing
    for name in sorted(SERVING):
        done = stack.container(name).exec_run(["python", "-c", code])
        assert done.exit_code != 0 and b"connected" not in done.output, name


def test_a_client_with_a_way_out_is_found_by_its_probe_and_fails_the_report(stack: Stack) -> None:
    """The boundary broken on purpose: client-1 is given one more network, that of client-2 and the aggregator."""
    network = stack.engine.networks.get("lpsfed-e2e_link-2")
    network.connect(stack.container("client-1"))
    try:
        code, printed = stack.again("probe-client-1")
        assert code == 0, printed  # it writes down what it saw; the report has the verdict
        code, report = stack.again("report")
    finally:
        network.disconnect(stack.container("client-1"))
    assert code == 1 and "This evidence does not show that nothing undeclared crossed" in report
    words = " ".join(report.split())
    assert "client-1, to another client" in words and "NOT HELD" in words, report
    assert stack.again("probe-client-1")[0] == 0
    assert stack.again("report")[0] == 0


def test_a_client_stopped_in_the_middle_of_a_run_ends_cleanly_and_the_run_goes_on(stack: Stack, tmp_path: Path) -> None:
    token, request = stack.token(), RunIn(rounds=6, clients=4, seed=1)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    started = httpx.post(f"{OPERATOR}/v1/runs", content=request.model_dump_json(), headers=headers, timeout=10)
    assert started.status_code == 201, started.text
    for name in ("client-2", "aggregator"):
        container, began = stack.container(name), time.monotonic()
        container.stop(timeout=60)
        print(f"{name} stopped after {time.monotonic() - began:.1f} s")
        assert container.wait()["StatusCode"] == 0, container.logs(tail=20).decode()
        container.start()
    (tmp_path / "token").write_text(token)
    with open_operator(OPERATOR, tmp_path / "token") as operator:
        done = follow_run(operator, "run-4", [].append)
    assert done.phase == "finished" and len(done.rounds) == 6 and not any(one.missing for one in done.rounds)
    assert stack.again("probe-aggregator")[0] == 0


def test_up_again_finds_everything_as_it_was_and_reports_again(stack: Stack) -> None:
    done = stack.compose("up", "--detach")
    assert done.returncode == 0, done.stderr
    report = stack.container("report")
    assert report.wait(timeout=ENGINE_SECONDS)["StatusCode"] == 0, report.logs(tail=60).decode()
    assert [one["run"] for one in _runs(stack.token())] == ["run-1", "run-2", "run-3", "run-4"]


def _runs(token: str) -> list[dict[str, object]]:
    answer = httpx.get(f"{OPERATOR}/v1/runs", headers={"Authorization": f"Bearer {token}"}, timeout=10)
    found: list[dict[str, object]] = answer.raise_for_status().json()
    return found
