"""Genuine client services with small shards, whose aggregator is a liar."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from client_service.settings import ClientSettings
from shared.method.settings import MethodSettings
from shared.protocol.signing.enrolment import ensure_key_pair
from shared.protocol.signing.keys import new_key, private_pem, public_pem
from shared.protocol.signing.members import write_registry
from shared.strategies import build_strategy
from shared.strategies.agreement import choose_similarity_floor
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import Federation
from tests.support.liar import Liar
from tests.support.questions import read, wait_until
from tests.support.small import SMALL, small_client

URL = "http://127.0.0.1"  # nothing listens there: each client's way leads to the liar
MOVING = {"start": "random", "mlp_learning_rate": 0.01}  # rates at which one round shows


@dataclass(frozen=True)
class Misled:
    """The running clients, and whom they follow."""

    liar: Liar
    clients: dict[str, httpx.AsyncClient]

    async def problem(self, client: str) -> str:
        """What a client shows its operator as being wrong."""
        return (await read(self.clients[client], "status")).get("problem") or ""

    async def until_summed(self, sums: int) -> None:
        """So many sums are uncovered."""

        async def uncovered() -> bool:
            return len(self.liar.means) == sums

        await wait_until(uncovered)

    async def require_refused(self, *words: str, by: Collection[str] = (), sums: int = 0) -> None:
        """These clients, by default all, say one of the words, and the liar has uncovered no more sums than that."""

        async def settled() -> bool:
            said = [await self.problem(name) for name in by or self.clients]
            return len(self.liar.means) > sums or all(any(one in problem for one in words) for problem in said)

        await wait_until(settled)
        assert len(self.liar.means) == sums, "an update lies bare"


async def start(federation: Federation, one: Experiment, **changed: Any) -> httpx.Response:
    """Ask for the experiment's run, changed so."""
    asked = one.run_request().model_copy(update=changed).model_dump(mode="json")
    return await federation.operator.post("/v1/runs", json=asked)


async def ending_of(federation: Federation, run: str) -> dict[str, Any]:
    """What the operator sees of a run, once it is over."""

    async def over() -> bool:
        return (await read(federation.operator, f"runs/{run}"))["phase"] in ("finished", "failed")

    await wait_until(over)
    return await read(federation.operator, f"runs/{run}")


Mislead = Callable[..., AbstractAsyncContextManager[Misled]]


def make_liar(names: Collection[str], kind: type[Liar] = Liar, *, secure: bool = True, **settings: Any) -> Liar:
    """Of a run of LPSFed with these clients. `settings`: the liar's own, or those of the run's method."""
    agreed = {name: settings.pop(name) for name in tuple(settings) if name in MethodSettings.model_fields}
    method = choose_similarity_floor(SMALL.model_copy(update=MOVING | agreed), secure=secure)
    declaration = build_strategy("lpsfed", method).declaration(method).model_copy(update={"secure": secure})
    return kind(declaration, method, new_key(), frozenset(names), **settings)


def settings_of(liar: Liar, shard: Path, folder: Path, **changed: Any) -> ClientSettings:
    """A client of the liar's federation. `members`: the file that it pins."""
    agreed = {"strategy": liar.declaration.strategy, "method": liar.method, "secure": liar.declaration.secure}
    own = {"signing_key_file": ensure_key_pair(shard.name, folder / shard.name).private, "aggregator_url": URL}
    return small_client(shard, folder, **(own | agreed | changed))


def members_of(liar: Liar, shards: Sequence[Path], folder: Path) -> Path:
    """The file that all silos have exchanged: the liar's own key stands in it, and each client's true one."""
    pair = ensure_key_pair("aggregator", folder / "liar")
    pair.private.write_bytes(private_pem(liar.key))
    pair.public.write_bytes(public_pem(liar.key.public_key()))
    clients = [ensure_key_pair(shard.name, folder / shard.name).public for shard in shards]
    return write_registry(folder / "members.toml", pair.public, clients)
