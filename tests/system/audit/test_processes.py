"""The commands as sidecars run them: processes beside real services on loopback."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import anyio
import pytest

from aggregator_service.app import create_app as create_aggregator
from client_service.app import create_app as create_client
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import execute_run
from simulation.experiments.processes import Addresses, connect_services
from tests.support.questions import LONGEST_SECONDS
from tests.support.serving import serve

ROOT = Path(__file__).parents[3]


def audit(*arguments: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "audit", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=LONGEST_SECONDS
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.processes
@pytest.mark.anyio
async def test_a_report_of_running_services_and_a_probe_that_is_found_in_the_next_one(
    experiment: Callable[..., Experiment], tmp_path: Path
) -> None:
    described = experiment("run")
    token, record = tmp_path / "token", tmp_path / "evidence" / "client-1.json"
    token.write_text(described.token)
    key = tmp_path / "key"
    key.write_text(described.operator_key)
    with ExitStack() as services:
        aggregator = create_aggregator(described.make_aggregator_settings())
        url = services.enter_context(serve(aggregator, wind_down=aggregator.state.coordinator.wind_down))
        settings = [described.make_client_settings(shard, aggregator_url=url) for shard in described.shards]
        clients = {one.name: services.enter_context(serve(create_client(one))) for one in settings}
        places = Addresses(url, clients)
        live = ["--aggregator-url", url, "--operator-token-file", str(token)]
        for name, address in clients.items():
            live += ["--client", f"{name}={address}", "--operator-key", f"{name}={key}"]
        async with connect_services(described, places) as federation:
            await execute_run(federation, described.run_request(), lambda _: None)
        code, said, _ = await anyio.to_thread.run_sync(audit, "privacy-report", "--records-only", *live)
        assert code == 0 and "Nothing undeclared crossed" in said
        own_key = described.state_folder(described.shards[0]) / "client-1.key"
        # Where the outside is this very machine, it is found; the record leaves the verdict to the report.
        here = ["--outside", url.removeprefix("http://"), "--root", str(described.shards[0])]
        mine = ["--name", "client-1", "--client-url", clients["client-1"], "--signing-key-file", str(own_key)]
        mine += ["--operator-key-file", str(key)]
        own = ["--own", str(described.shards[0]), "--outside-name", "localhost", "--record", str(record), "--json"]
        code, said, told = await anyio.to_thread.run_sync(
            audit, "probe", "client", "--aggregator-url", url, *mine, *here, *own
        )
        assert code == 0, told
        found = {one["kind"]: one["held"] for one in json.loads(said)["probes"]}
        assert (found["outside by TCP"], found["outside by DNS"]) == (False, False)
        assert found["past the gate"] and found["at the gate"] and found["control: its own files"]
        code, said, _ = await anyio.to_thread.run_sync(audit, "privacy-report", "--records-only", *live, "--json")
    faults = [fault for one in json.loads(said)["findings"] for fault in one["faults"]]
    assert code == 1 and all("client-1, " in fault and "refused" in fault for fault in faults)
    assert "client-1, update of run-1 round 2, refused with 422, 10 times: not on the ledger" in faults


def test_an_error_is_one_line_without_a_traceback() -> None:
    code, said, told = audit("privacy-report", "no-such-file.json")
    assert (code, said) == (1, "") and "error: no-such-file.json: expected evidence" in told and "Traceback" not in told
