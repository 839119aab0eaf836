"""Real services of silos of nodes that share sums alone: opened, a run of a part held, and what a silo keeps of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from client_service.data.node_files import save_node_shard
from client_service.data.node_graphs import NodeShard
from client_service.settings import ClientSettings
from client_service.sums.storage import load_basis, load_basis_head
from shared.method.settings import MethodSettings
from simulation.experiments.experiment import Experiment
from tests.support.federation import Federation, run_federation
from tests.support.questions import wait_until

Federate = Callable[..., AbstractAsyncContextManager[tuple[Federation, list[ClientSettings]]]]


def federate_nodes(folder: Path) -> Federate:
    """`async with federate_nodes(folder)(shards, method)` -> the services, and the settings of the silos."""

    @asynccontextmanager
    async def start(
        shards: list[NodeShard], method: MethodSettings, *, secure: bool = True, name: str = "run"
    ) -> AsyncIterator[tuple[Federation, list[ClientSettings]]]:
        paths = tuple(folder / name / "shards" / shard.name for shard in shards)
        for path, shard in zip(paths, shards, strict=True):
            save_node_shard(path, shard)
        one = Experiment(paths, folder / name, method, "local", "nodes", rounds=1, device="cpu", secure=secure)
        clients = [one.make_client_settings(path, aggregator_url="http://127.0.0.1") for path in paths]
        async with run_federation(one.make_aggregator_settings(), clients) as running:
            yield running, clients

    return start


async def hold(running: Federation, run: str, part: str, **request: Any) -> dict[str, Any]:
    """A run of this part, and what the operator sees of it once it is over."""
    answer = await running.operator.post("/v1/runs", json={"clients": len(running.silos), "part": part} | request)
    assert answer.status_code == 201, answer.text

    async def over() -> bool:
        return (await running.history(run))["phase"] in ("finished", "failed")

    await wait_until(over)
    return await running.history(run)


async def kept(one: ClientSettings, part: str, run: str) -> Any:
    """What the silo has made of the sums of this run, once it has."""
    folder = one.state_directory / "basis"

    async def there() -> bool:
        head = load_basis_head(folder, part)
        return head is not None and head.run == run

    await wait_until(there)
    head = load_basis_head(folder, part)
    assert head is not None
    return load_basis(folder, head.digest)
