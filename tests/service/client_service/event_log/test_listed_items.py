"""Events on items that the clients' common catalogue does not list wait in the log, and hold nothing up."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_service.data.interaction_files import load_shard
from client_service.event_log.messages import InteractionIn
from client_service.event_log.store import EventStore
from client_service.settings import ClientSettings
from client_service.tasks.items import load_listed_shard
from tests.support.given import Opened, Silos, Until
from tests.support.kept import absorb_and_forget
from tests.support.questions import in_phase
from tests.support.small import SMALL, small_client
from tests.support.telling import ended, event, post, refresh, rests

LISTED = [f"item-{number:02d}" for number in range(14)]  # two more than the shard has


@pytest.fixture
def listed(silos: Silos, tmp_path: Path) -> ClientSettings:
    """A silo whose items have rows in a table that all clients share."""
    catalogue = tmp_path / "catalogue.txt"
    catalogue.write_text("\n".join(LISTED) + "\n", encoding="utf-8")
    method = SMALL.model_copy(update={"catalogue": len(LISTED)})
    given = {"catalogue": catalogue, "strategy": "fedmf", "policy": {"strategies": ["fedmf"]}, "method": method}
    return small_client(silos(1)[0], tmp_path, **given)


@pytest.mark.anyio
async def test_an_item_that_is_not_listed_waits_and_neither_a_refresh_nor_a_restart_fails(
    listed: ClientSettings, opened: Opened, until: Until
) -> None:
    async with opened(listed.model_copy(update={"refresh_interactions": 2})) as http:
        await until(in_phase(http, "joining"))
        told = await post(http, event("new", "item-13"), event("new", "misspelt"), event("other", "misspelt"))
        assert told["unknown_items"] == 3
        done = await ended(http, until, 1)  # it begins by itself
        assert done["changed"] and done["waiting"] == 2 and "problem" not in done
        assert (await refresh(http, until))["waiting"] == 2  # they still do
    shard = load_shard(listed.shard)
    assert "misspelt" not in shard.item_ids and "new" in shard.user_ids and "other" not in shard.user_ids
    async with opened(listed) as http:
        await until(in_phase(http, "joining"))
        assert await rests(http)


def test_once_it_is_listed_it_joins_the_shard(listed: ClientSettings) -> None:
    listed.state_directory.mkdir(parents=True)
    store = EventStore(listed.state_directory)
    store.append([InteractionIn(**event("new", item), time=None, rating=None) for item in ("misspelt", "item-00")])
    assert absorb_and_forget(listed, store, LISTED).waiting == 1
    assert not store.has_new_events(1, 4.0)
    load_listed_shard(listed)
    after = absorb_and_forget(listed, store, [*LISTED, "misspelt"]).after
    assert "misspelt" in after.item_ids and store.interactions() == []
    store.close()
