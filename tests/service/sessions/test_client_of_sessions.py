"""The Python client asks a silo of sessions over a real socket, which has no model yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from client_service.app import create_app
from client_service.data.session_files import load_session_shard
from client_service.data.sessions import SessionShard
from client_service.settings import client_settings
from lpsfed import AsyncClient, Client, RefusedError, Retrying
from shared.method.settings import MethodSettings
from shared.protocol.signing.enrolment import ensure_key_pair
from tests.support.federation import Unreachable
from tests.support.serving import serve

KEY = "AbCdEfGh0123456789-AbCdEfGh0123456789"


@pytest.fixture
def silo(
    visits: Callable[[int], list[Path]], taught: MethodSettings, tmp_path: Path
) -> Iterator[tuple[str, SessionShard]]:
    folder = visits(1)[0]
    shard, state = load_session_shard(folder), tmp_path / "state"
    ensure_key_pair("shop", state)
    settings = client_settings(
        name="shop",
        shard=folder,
        task="sessions",
        state_directory=state,
        aggregator_url="http://127.0.0.1:1",
        strategy="fedavg",
        policy={"strategies": ["fedavg"], "item_tables": True},
        method=taught.model_copy(update={"catalogue": len(shard.item_ids)}),
        application_key=KEY,
    )
    with serve(create_app(settings, outside=Unreachable())) as address:
        yield address, shard


@pytest.mark.anyio
async def test_both_clients_ask_what_comes_next(silo: tuple[str, SessionShard]) -> None:
    address, shard = silo
    session = [shard.item_ids[0], "unknown", shard.item_ids[2]]
    with Client(address, KEY, retrying=Retrying(attempts=1)) as client:
        found = client.predict_next(session, k=3, exclude_seen=True)
        assert len(found.items) == 3 and found.unknown_items == 1 and found.fallback == "no model yet"
        assert not {one.item for one in found.items} & set(session)
        together = client.predict_next_of([session, session[:1]], k=3, exclude_seen=True)
        assert together[0] == found and len(together) == 2
        with pytest.raises(RefusedError, match="another task"):
            client.recommend("4711")
    async with AsyncClient(address, KEY) as client:
        assert await client.predict_next(session, k=3, exclude_seen=True) == found
