"""A silo of nodes over real sockets: labels, posted nodes, refreshes, erasures; its trainer and a server beside it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import polars as pl
import pytest

from client_service.__main__ import server_settings
from client_service.app import create_app
from client_service.data.node_files import load_node_shard
from client_service.http.server_app import create_server
from client_service.settings import ClientSettings
from lpsfed import AsyncClient, Client, NewNode, NodeEvent, RefusedError, Retrying
from tests.support.federation import Unreachable
from tests.support.nodes import keep_node_model, node_silo, small_graph
from tests.support.questions import LONGEST_SECONDS
from tests.support.serving import serve

KEY, OPERATOR = "AbCdEfGh0123456789-AbCdEfGh0123456789", "operator-key-of-the-tests-01234567"
CANARY = "node-0003"


@pytest.fixture
def settings(tmp_path: Path) -> ClientSettings:
    found = node_silo(tmp_path, small_graph(nodes=120), application_key=KEY, operator_key=OPERATOR)
    return keep_node_model(found)


@pytest.fixture
def silo(settings: ClientSettings) -> Iterator[str]:
    with serve(create_app(settings, outside=Unreachable())) as address:
        wait_until(lambda: read(address, "/v1/model").get("version") is not None)
        yield address


def wait_until(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + LONGEST_SECONDS
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.1)


def read(address: str, path: str, key: str = KEY) -> dict[str, object]:
    found: dict[str, object] = httpx.get(f"{address}{path}", headers={"Authorization": f"Bearer {key}"}).json()
    return found


def texts(folders: list[Path]) -> dict[Path, bytes]:
    """The content of every file; of tables what they hold, because it is compressed."""
    found = {path: path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()}
    return found | {path: pl.read_parquet(path).write_csv().encode() for path in found if path.suffix == ".parquet"}


def test_labels_of_known_and_new_nodes_with_what_joining_added(silo: str) -> None:
    with Client(silo, KEY, retrying=Retrying(attempts=1)) as client:
        new = NewNode([1.0, 0.0, 0.5, -1.0], {CANARY: 2.0, "nobody": 1.0})
        found = client.label_nodes([CANARY, new])
        known, fresh = found.results
        assert found.model == "run-1.0" and found.joining is not None and found.joining.measure == "AUC"
        assert known.node == CANARY and sum(known.probabilities.values()) == pytest.approx(1.0, abs=1e-6)
        assert known.probability == known.probabilities[known.label] and 0 < len(known.neighbours) <= 5
        sizes = [abs(one.contribution) for one in known.neighbours]
        assert sizes == sorted(sizes, reverse=True)
        assert fresh.unknown_neighbours == 1 and [one.node for one in fresh.neighbours] == [CANARY]
        with pytest.raises(RefusedError, match="got 1 unknown id of 2 nodes") as refused:
            client.label_nodes([CANARY, "nobody"])
        assert refused.value.code == "not-found"
        for other in (lambda: client.recommend("4711"), lambda: client.predict_next(["a"])):
            with pytest.raises(RefusedError, match="another task"):
                other()
        with pytest.raises(RefusedError, match="events of users"):
            client.erase_user("4711")


def test_events_reach_answers_at_once_and_the_model_with_a_refresh(silo: str, settings: ClientSettings) -> None:
    event = NodeEvent("worker", {"column-1": 2.0}, {CANARY: 2.0, "node-0007": 1.0}, "class-1")
    with Client(silo, KEY) as client, Client(silo, OPERATOR) as operator:
        assert client.send_nodes([event]).accepted == 1
        before = client.label_nodes(["worker"]).results[0]
        assert before.known_label == "class-1" and len(before.neighbours) == 2
        operator.refresh()
        wait_until(lambda: client.read_model().version == "refresh.1")
        after = client.label_nodes(["worker"])
        assert after.model == "refresh.1" and after.results[0].known_label == "class-1"
        wait_until(lambda: operator.read_refresh().phase == "idle")
    assert "worker" in load_node_shard(settings.shard).rows


def test_an_erased_node_is_in_no_file_and_no_log(
    silo: str, settings: ClientSettings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    folders = [settings.state_directory, settings.shard]
    with Client(silo, KEY) as client:
        client.send_nodes([NodeEvent("worker", [1.0, 0.0, 0.0, 0.0], {CANARY: 1.0})])
        assert sum(CANARY.encode() in content for content in texts(folders).values()) >= 3
        receipt = client.erase_node(CANARY)
        assert receipt.events == 1 and receipt.done_at is None
        with pytest.raises(RefusedError, match="unknown id"):
            client.label_nodes([CANARY])
        assert CANARY not in str(client.label_nodes(["worker"]))
        wait_until(lambda: client.read_erasure(receipt.receipt).done_at is not None)
        wait_until(lambda: client.read_model().version is not None)
        with pytest.raises(RefusedError, match="unknown id"):
            client.label_nodes([CANARY])
        assert "worker" in str(client.label_nodes(["worker"]))
    assert [path for path, content in texts(folders).items() if CANARY.encode() in content] == []
    assert CANARY not in caplog.text and "worker" not in caplog.text.replace("workers", "").replace("worker_", "")


@pytest.mark.anyio
async def test_a_server_beside_the_trainer_answers_and_follows(silo: str, settings: ClientSettings) -> None:
    with serve(create_server(server_settings(settings, trains=False))) as address:
        async with AsyncClient(address, KEY) as server, AsyncClient(silo, KEY) as trainer:
            assert await server.label_nodes([CANARY]) == await trainer.label_nodes([CANARY])
            await server.send_nodes([NodeEvent("worker", [1.0, 0.0, 0.0, 0.0], {CANARY: 1.0}, "class-0")])
            told = (await server.label_nodes(["worker"])).results[0]
            assert (await trainer.label_nodes(["worker"])).results[0] == told and told.known_label == "class-0"
            receipt = await server.erase_node(CANARY)
            for one in (server, trainer):
                with pytest.raises(RefusedError, match="unknown id"):
                    await one.label_nodes([CANARY])
            until = time.monotonic() + LONGEST_SECONDS
            while (await server.read_erasure(receipt.receipt)).done_at is None:
                assert time.monotonic() < until
            while (await server.label_nodes(["worker"])).model != "refresh.1":
                assert time.monotonic() < until
            for one in (server, trainer):
                with pytest.raises(RefusedError, match="unknown id"):
                    await one.label_nodes([CANARY])


def test_the_page_shows_homophily_curves_and_a_label(silo: str) -> None:
    headers = {"Authorization": f"Bearer {OPERATOR}"}
    page = httpx.get(f"{silo}/", params={"user": CANARY}, headers=headers).text
    for words in ("Homophily of edges", "adjusted", "ROC curve", "Reliability", "Try a label", f"Label of {CANARY}"):
        assert words in page, words
    assert "popular items" not in page and "Neighbours with the largest contributions" in page
    unknown = httpx.get(f"{silo}/", params={"user": "<b>nobody</b>"}, headers=headers).text
    assert "This silo has no such node." in unknown and "<b>nobody" not in unknown
