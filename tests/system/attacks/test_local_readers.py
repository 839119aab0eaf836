"""What a trained silo and its aggregator keep is for their user alone: with real processes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from simulation.experiments.experiment import Experiment
from simulation.experiments.processes import _environment_variables, _url_port, choose_addresses, connect_services
from tests.support import readable as readers
from tests.support.forked import start_service
from tests.support.given import Until
from tests.support.questions import finished
from tests.support.readable import USUAL, readable

umask = readers.umask

OPEN = f"import os; os.umask({USUAL})"


@pytest.mark.anyio
@pytest.mark.processes
async def test_what_a_trained_silo_and_its_aggregator_keep_is_for_their_user_alone(
    experiment: Callable[..., Experiment], until: Until
) -> None:
    described = experiment("run", strategy="fedavg")
    described.folder.mkdir()
    places, processes = choose_addresses(described), []
    old = [described.state_folder(described.shards[0]), described.shards[0]]
    for folder in old:  # an earlier version has left them so
        (folder / "old").mkdir(parents=True)
        (folder / "old" / "file").write_text("u1")
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
    assert all(readable(folder) for folder in old)

    def start(package: str, settings: object, **more: str) -> None:
        environment = _environment_variables(f"LPSFED_{package.partition('_')[0].upper()}", settings) | more
        processes.append(start_service(package, environment, described.folder / f"{len(processes)}.log", patch=OPEN))

    try:
        aggregator = described.make_aggregator_settings(port=_url_port(places.aggregator))
        start("aggregator_service", aggregator, LPSFED_AGGREGATOR_OPERATOR_TOKEN=described.token)
        for shard in described.shards:
            port = _url_port(places.clients[shard.name])
            start(
                "client_service",
                described.make_client_settings(shard, aggregator_url=places.aggregator, port=port),
            )
        async with connect_services(described, places) as federation:
            request = described.run_request().model_dump_json()
            headers = {"Content-Type": "application/json"}
            assert (await federation.operator.post("/v1/runs", content=request, headers=headers)).status_code == 201
            await until(finished(*federation.clients.values()))
            told = {"interactions": [{"event": "e", "user": "u", "item": "item-00"}]}
            answer = await federation.clients["client-1"].post(
                "/v1/interactions", json=told, headers={"Authorization": f"Bearer {described.application_key}"}
            )
            assert answer.status_code == 200, answer.text
            kept = [aggregator.state_directory, *map(described.state_folder, described.shards), *described.shards]
            names = {path.name for folder in kept for path in folder.rglob("*")}
            assert {
                "ledger.jsonl",
                "feedback.sqlite",
                "aggregator.sqlite",
                "model.json",
                "interactions.parquet",
            } <= names
            assert any(name.endswith("-wal") for name in names)
            assert {str(folder): readable(folder) for folder in kept} == {str(folder): {} for folder in kept}
    finally:
        for process in processes:
            process.kill()
            process.join()
