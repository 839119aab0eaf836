"""A disk that takes no more, at a silo of nodes or of visits: it answers from memory, and a refresh is done later."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import torch

from client_service.app import create_app
from client_service.compilation.folder_publisher import FolderPublisher
from client_service.compilation.nodes import publish_nodes
from client_service.compilation.sessions import publish_sessions
from client_service.compiled.publication import read_publication
from client_service.model_store.node_models import freeze_nodes
from client_service.model_store.session_models import freeze_sessions
from client_service.refresh import scheduler as refreshing
from client_service.runtime.interruption import NEVER
from client_service.tasks.nodes import NODES
from client_service.training.node_trainer import NodeTrainer
from client_service.training.session_trainer import SessionTrainer
from shared.method.settings import method_settings
from tests.service.nodes.test_node_silo import KEY, OPERATOR, read, wait_until
from tests.support.federation import Unreachable
from tests.support.nodes import keep_node_model, node_silo, small_graph
from tests.support.serving import serve
from tests.unit.client_service.compiled.test_compiled_sessions import make_shop

WRITERS = ("compiled.arrays.np.save", "compiled.publication.sync_path", "compiled.publication.replace_file")


def refuse(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("shard_too", [False, True], ids=["model", "shard"])
def test_a_model_of_nodes_that_cannot_be_published_answers_from_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: str, shard_too: bool
) -> None:
    shard = small_graph()
    training = NodeTrainer(shard, method_settings(model="node_ridge"), torch.device("cpu"))
    publisher = FolderPublisher(tmp_path, "nodes", shard)
    with monkeypatch.context() as full:
        if shard_too:
            full.setattr(f"client_service.{writer}", refuse)
        _, publish_model = publish_nodes(shard, publisher)
        full.setattr(f"client_service.{writer}", refuse)
        model = publish_model(freeze_nodes("run-1.0", training))
    assert model.version == "run-1.0" and publisher.failure is not None
    published = read_publication(tmp_path)
    assert published is None if shard_too else published is not None and published.model is None
    assert not list(tmp_path.glob("*.partial")) and not list(tmp_path.glob(".*.partial"))
    if not shard_too:
        publish_model(freeze_nodes("run-1.1", training))
        published = read_publication(tmp_path)
        assert published is not None and published.version == "run-1.1" and publisher.failure is None


@pytest.mark.parametrize("writer", WRITERS)
def test_a_model_of_visits_that_cannot_be_published_answers_from_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: str
) -> None:
    shop = make_shop()
    training = SessionTrainer(
        shop, method_settings(model="srgnn", width=8, catalogue=len(shop.item_ids)), torch.device("cpu"), NEVER
    )
    publisher = FolderPublisher(tmp_path, "sessions", shop)
    with monkeypatch.context() as full:
        full.setattr(f"client_service.{writer}", refuse)
        _, publish_model = publish_sessions(shop, publisher)
        model = publish_model(freeze_sessions("run-1.0", training))
        assert model.version == "run-1.0" and publisher.failure is not None
    _, publish_model = publish_sessions(shop, publisher)
    assert publish_model(freeze_sessions("run-1.0", training)).version == "run-1.0"
    published = read_publication(tmp_path)
    assert published is not None and published.version == "run-1.0" and publisher.failure is None


def test_a_silo_of_nodes_without_room_starts_and_refreshes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = keep_node_model(node_silo(tmp_path, small_graph(), application_key=KEY, operator_key=OPERATOR))
    monkeypatch.setattr(refreshing, "RETRY_SECONDS", 0.1)
    with monkeypatch.context() as full:
        full.setattr("client_service.compiled.publication.sync_path", refuse)
        with serve(create_app(settings, outside=Unreachable())) as address:
            wait_until(lambda: read(address, "/v1/model").get("version") is not None)
            ask = _ask(address)
            assert ask("/v1/labels", {"nodes": ["node-0003"]})["results"][0].get("fallback") is None
            new = {"node": "new", "features": [0.0] * 4, "neighbours": [{"node": "node-0001"}]}
            ask("/v1/nodes", {"nodes": [new]})
            ask("/v1/refresh", None)
            wait_until(
                lambda: str(_refresh(address).get("problem", "")).startswith(
                    "expected free disk space and a writable directory, got No"
                )
            )
            assert ask("/v1/labels", {"nodes": ["node-0003", "new"]})["results"][0].get("fallback") is None
            full.undo()
            wait_until(lambda: bool(_refresh(address).get("changed")))
            wait_until(lambda: _published(settings.state_directory) == NODES.read(settings).digest)


def _ask(address: str) -> Callable[[str, object], dict[str, list[dict[str, object]]]]:
    def ask(path: str, body: object) -> dict[str, list[dict[str, object]]]:
        key = OPERATOR if path == "/v1/refresh" else KEY
        answer = httpx.post(f"{address}{path}", json=body, headers={"Authorization": f"Bearer {key}"}, trust_env=False)
        assert answer.is_success, answer.text
        found: dict[str, list[dict[str, object]]] = answer.json()
        return found

    return ask


def _refresh(address: str) -> dict[str, object]:
    return read(address, "/v1/refresh", OPERATOR)


def _published(state: Path) -> str | None:
    found = read_publication(state / "serving")
    return None if found is None or found.version is None else found.shard_digest
