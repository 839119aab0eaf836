"""Updates of 64 MB from six clients at once: the aggregator holds them one piece at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio
import numpy as np
import pytest

from shared.method.parameters import Parameters
from shared.method.settings import MethodSettings
from shared.protocol.schemas import RunIn
from shared.protocol.wire import encode_body
from shared.strategies import build_strategy
from tests.system.soak.light import MEBI, Federation, Light, federation

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
CLIENTS, ROUNDS = 6, 3
OWN_MEBI = 150.0  # for the process itself: the interpreter, its packages, the database
UPDATES = 3  # times an update's size, beyond that
MLPS = MethodSettings(width=1024, layers=8)  # as much as two MLPs can hold: 52 MiB in eight tensors
TABLE = MethodSettings(width=64, catalogue=262_000)  # one tensor is the whole update, just below 64 MiB


async def lived(client: Light, body: bytes, number: int) -> None:
    await client.upload(number, body)
    assert await client.fetch(number) > len(body) - MEBI


async def rounds(running: Federation, body: Callable[[int], bytes]) -> None:
    for number in range(1, ROUNDS + 1):
        now = body(number)
        async with anyio.create_task_group() as tasks:
            for client in running.clients:
                tasks.start_soon(lived, client, now, number)


@pytest.mark.parametrize(("strategy", "method"), [("lpsfed", MLPS), ("fedmf", TABLE)], ids=["two MLPs", "item table"])
async def test_the_peak_of_memory_is_a_few_updates(tmp_path: Path, strategy: str, method: MethodSettings) -> None:
    declaration = build_strategy(strategy, method).declaration(method)

    def body(number: int) -> bytes:
        arrays = {spec.name: np.full(spec.shape, number / 7, dtype=np.float32) for spec in declaration.tensors}
        return encode_body(Parameters(arrays, {"margin": 0.1, "rho": 0.1} if declaration.scalars else {}))

    settings = {"strategy": strategy, "method": method, "longest_body_seconds": 500}
    async with federation(tmp_path / "state", declaration, CLIENTS, **settings) as running:
        before, size = running.gauge.peak(), len(body(1)) / MEBI
        await running.start(RunIn(rounds=ROUNDS, clients=CLIENTS, method=method))
        with anyio.fail_after(500):
            await rounds(running, body)
        peak, phase = running.gauge.peak(), await running.phase()
    print(  # noqa: T201 - the figures are what a soak is run for
        f"\n{strategy}: {CLIENTS} clients x {size:.1f} MiB x {ROUNDS} rounds: peak {peak:.1f} MiB, "
        f"{before:.1f} before the first update; allowed {UPDATES * size + OWN_MEBI:.1f}"
    )
    assert phase == "finished" and peak < UPDATES * size + OWN_MEBI
