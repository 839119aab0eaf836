"""Genuine client services with small shards, whose aggregator is a liar."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from client_service.settings import ClientSettings, client_settings
from client_service.training_run import TrainingRun
from shared.method.exchanged import Parameters
from shared.protocol.signing.enrolment import kept_pair
from shared.protocol.signing.keys import private_pem, public_pem
from shared.protocol.signing.registry import write_registry
from tests.attacks.liar import Liar

if TYPE_CHECKING:
    from conftest import Opened

URL = "http://127.0.0.1"  # nothing listens there: each client's way leads to the liar


@dataclass
class Misled:
    """The running clients. `updates`: what each has trained, by client and round, whatever became of it."""

    clients: dict[str, httpx.AsyncClient]
    updates: dict[tuple[str, int], Parameters] = field(default_factory=dict)

    async def problems(self) -> dict[str, str]:
        """What each client shows its operator as being wrong."""
        found = {name: (await http.get("/v1/status")).json() for name, http in self.clients.items()}
        return {name: status.get("problem") or "" for name, status in found.items()}

    async def all_say(self, words: str) -> bool:
        return all(words in problem for problem in (await self.problems()).values())


def settings_of(liar: Liar, shard: Path, folder: Path, **changed: Any) -> ClientSettings:
    """A client of the liar's federation. `members`: the file that it pins."""
    state = folder / shard.name
    return client_settings(
        **{
            "name": shard.name,
            "shard": shard,
            "state_directory": state,
            "signing_key_file": kept_pair(shard.name, state).private,
            "aggregator_url": URL,
            "strategy": liar.declaration.strategy,
            "method": liar.method,
            "secure": liar.declaration.secure,
            "device": "cpu",
            **changed,
        }
    )


def members_of(liar: Liar, shards: Sequence[Path], folder: Path) -> Path:
    """The file that all silos have exchanged: the liar's own key stands in it, and each client's true one."""
    pair = kept_pair("aggregator", folder / "liar")
    pair.private.write_bytes(private_pem(liar.key))
    pair.public.write_bytes(public_pem(liar.key.public_key()))
    clients = [kept_pair(shard.name, folder / shard.name).public for shard in shards]
    return write_registry(folder / "members.toml", pair.public, clients)


@asynccontextmanager
async def misled(
    liar: Liar, shards: Sequence[Path], folder: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch, **changed: Any
) -> AsyncIterator[Misled]:
    """These silos' clients follow the liar until the context ends."""
    members, fit, made = members_of(liar, shards, folder), TrainingRun.fit, Misled({})

    def note(part: TrainingRun, strategy: Any, moment: Any, received: Any) -> Any:
        update, seconds = fit(part, strategy, moment, received)
        made.updates[part.place.client, moment.round] = update
        return update, seconds

    monkeypatch.setattr(TrainingRun, "fit", note)
    async with AsyncExitStack() as stack:
        for shard in shards:
            pinned = {"members": members} if liar.declaration.secure else {}
            settings = settings_of(liar, shard, folder, **(pinned | changed))
            running = opened(settings, liar.transport(shard.name))
            made.clients[shard.name] = await stack.enter_async_context(running)
        yield made
