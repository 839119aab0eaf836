"""A user who is erased must be unknown to a replica too, and what was met since the shard not recommended by it.

Who: nobody has to attack. The replicas of the Kubernetes component mount parts of the client's state, and the log of
what applications have told was not among them: an erased user's list was answered until the next shard, and items that
were hidden or met since went on being recommended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import yaml

from client_service.__main__ import server_settings
from client_service.event_log.messages import InteractionIn, ItemIn
from client_service.event_log.store import EventStore
from client_service.http import server
from client_service.http.server_app import create_server
from shared.errors import UnavailableError
from tests.support.kept import keep_first_model
from tests.support.questions import LONGEST_SECONDS
from tests.support.small import small_client

if TYPE_CHECKING:
    from conftest import Silos

DEPLOYMENT = Path(__file__).parents[3] / "k8s" / "components" / "serving-replicas" / "serving.yaml"


def mounted_state(state: Path, there: Path) -> Path:
    """A folder with those parts of a client's state that the component gives its replicas."""
    pods = [one for one in yaml.safe_load_all(DEPLOYMENT.read_text()) if one["kind"] == "Deployment"]
    (container,) = pods[0]["spec"]["template"]["spec"]["containers"]
    there.mkdir()
    for one in container["volumeMounts"]:
        if one["name"] == "state":
            (there / Path(one["mountPath"]).relative_to("/state")).symlink_to(state / one["subPath"])
    return there


async def until(found: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(LONGEST_SECONDS):
        while not await found():
            await asyncio.sleep(0.02)


@pytest.mark.anyio
async def test_a_server_that_mounts_parts_of_the_state_follows_erasures_and_what_was_met(
    silos: Silos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "LOG_CHECK_SECONDS", 0.02)
    settings = small_client(silos(1)[0], tmp_path)
    shard, _ = keep_first_model(settings, published=True)
    store = EventStore(settings.state_directory)
    there = mounted_state(settings.state_directory, tmp_path / "mounted")
    app = create_server(server_settings(settings.model_copy(update={"state_directory": there}), trains=False))
    transport = httpx.ASGITransport(app=app)
    gone, user = shard.user_ids[:2]
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http,
    ):

        async def answer(who: str) -> dict[str, Any]:
            found: dict[str, Any] = (await http.get(f"/v1/users/{who}/recommendations?k=12")).json()
            return found

        async def items() -> list[str]:
            return [one["item"] for one in (await answer(user))["items"]]

        async def is_unknown() -> bool:
            return (await answer(gone)).get("fallback") == "unknown user"

        async def has_none(item: str) -> bool:
            return item not in await items()

        first, second, *_ = await items()
        store.append([InteractionIn(event="e", user=user, item=first, time=None, rating=None)])
        await until(lambda: has_none(first))
        store.put_item(second, ItemIn(hidden=True))
        await until(lambda: has_none(second))
        assert not await is_unknown()
        store.erasures.erase_user(gone, known=True)
        await until(is_unknown)
    store.close()


@pytest.mark.anyio
async def test_a_server_that_cannot_read_who_is_erased_is_not_ready(
    silos: Silos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And whoever holds the log's lock, and has stopped, keeps no server from reading."""
    monkeypatch.setattr(server, "LOG_CHECK_SECONDS", 0.01)
    settings = small_client(silos(1)[0], tmp_path)
    shard, _ = keep_first_model(settings, published=True)
    gone, user = shard.user_ids[:2]
    app = create_server(server_settings(settings, trains=False))
    transport = httpx.ASGITransport(app=app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http,
    ):

        async def is_ready() -> bool:
            return (await http.get("/health/ready")).status_code == 200

        async def is_hindered() -> bool:
            return not await is_ready()

        async def answer(who: str) -> httpx.Response:
            return await http.get(f"/v1/users/{who}/recommendations")

        other, store = EventStore(settings.state_directory), app.state.service.feedback.store
        with other._database.transaction() as rows:
            rows.execute("UPDATE place SET looked = looked")
            assert await is_ready() and (await answer(user)).json()["model"] == "run-1.0"
        with monkeypatch.context() as patch:
            patch.setattr(store, "count_changes", partial(refuse, "the log cannot be used now"))
            other.erasures.erase_user(gone, known=True)
            assert (await answer(gone)).status_code == 503  # it does not know whether he is erased
            await until(is_hindered)
            assert "so erased users are unknown" in (await http.get("/health/ready")).text
        await until(is_ready)
        assert (await answer(gone)).json()["fallback"] == "unknown user"
        other.close()


def refuse(reason: str) -> None:
    raise UnavailableError(reason)
