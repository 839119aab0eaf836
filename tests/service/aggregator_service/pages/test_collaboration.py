"""Who learns from whom, on the operator's page and in the run's history, and to nobody else."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pytest

from aggregator_service.pages.collaboration import SHOWN, draw_heat_map
from shared.method.node_settings import NodeSettings
from shared.method.parameters import Parameters
from shared.method.settings import MethodSettings
from shared.protocol.schemas import CollaborationOut
from shared.protocol.wire import encode_body
from tests.support.small import TOKEN

if TYPE_CHECKING:
    from conftest import FakeClient, Running

METHOD = MethodSettings(width=2, nodes=NodeSettings(features=4, classes=2, order=2))
NAMES = ("east", "north", "south")


def update(client: FakeClient) -> bytes:
    generator = np.random.default_rng(NAMES.index(client.name))
    specs = (*client.declaration.tensors, *client.declaration.reports)
    return encode_body(Parameters({one.name: generator.normal(size=one.shape).astype(np.float32) for one in specs}))


@pytest.mark.anyio
async def test_the_operator_sees_w_and_no_silo_does(running: Running) -> None:
    async with running(strategy="fedgsp", method=METHOD) as federation:
        clients = await federation.begun(*NAMES)
        assert "collaboration" not in await federation.history()
        for client in clients:
            assert (await client.put(1, update(client))).status_code == 201
        for client in clients:
            assert (await client.personalised(1)).status_code == 200
        found = (await federation.history())["collaboration"]
        assert (found["round"], found["clients"]) == (1, list(NAMES))
        np.testing.assert_allclose(np.sum(found["weights"], axis=1), 1.0, atol=1e-3)
        assert len(found["columns_low"]) == len(found["columns_high"]) == 2
        page = (await federation.http.get("/", auth=("operator", TOKEN))).text
        assert "Who learns from whom" in page and "after round 1" in page
        assert len(re.findall(r'class="cell shade-\d+"', page)) == 9
        for client in clients:
            assert (await client.get("/v1/runs/run-1")).status_code in (401, 403)
            own = (await client.get("/v1/runs/current")).text
            assert "weights" not in own and "collaboration" not in own


@pytest.mark.anyio
async def test_a_federation_that_averages_has_no_such_table(running: Running) -> None:
    async with running(strategy="fedavg") as federation:
        clients = await federation.begun(*NAMES)
        for client in clients:
            assert (await client.put(1, client.update(1.0))).status_code == 201
        for client in clients:
            assert (await client.personalised(1)).status_code == 200
        assert "collaboration" not in await federation.history()
        assert "Who learns" not in (await federation.http.get("/", auth=("operator", TOKEN))).text


def test_a_page_holds_so_many_clients_and_says_how_many_more_there_are() -> None:
    names = tuple(f"client-{number:03}" for number in range(SHOWN + 5))
    rows = tuple(tuple(1.0 / len(names) for _ in names) for _ in names)
    found = draw_heat_map(CollaborationOut(round=3, clients=names, weights=rows, columns_low=(1.0,), columns_high=()))
    assert found is not None and (len(found.rows), len(found.clients), found.more) == (SHOWN, SHOWN, 5)
    assert {cell.shade for row in found.rows for cell in row.cells} == {10}
    assert found.notes == (
        "Similarity at low frequencies is measured by 1.0 features.",
        "Dissimilarity at high frequencies is measured by no features.",
    )
