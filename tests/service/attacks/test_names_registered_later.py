"""Names that are registered later isolate no silo.

Who: the aggregator, or its operator. It registers two names more, holds their keys, quarantines everybody but one silo,
and asks for a sum over these three. Before, a silo as `lpsfed join` leaves it believed each name that it saw first: the
sum less what the two invented ones had added was the silo's matrix, every pair of it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from client_service.settings import ClientSettings
from client_service.sums.statistics import catalogue_matrix
from client_service.sums.storage import load_basis, load_basis_head
from client_service.tasks.items import load_listed_shard
from shared.method.settings import BasisSettings
from tests.support.federation import Federation, run_federation
from tests.support.given import Silos
from tests.support.questions import read, wait_until
from tests.support.small import SMALL, small_aggregator, small_client

pytestmark = pytest.mark.anyio
HONEST = tuple(f"client-{number}" for number in range(1, 5))
VICTIM, INVENTED = "client-4", ("client-5", "client-6")
METHOD = SMALL.model_copy(update={"catalogue": 12, "basis": BasisSettings(kind="exact", least_pairs=1)})


@pytest.fixture
def members(silos: Silos, tmp_path: Path, impatient: None) -> dict[str, ClientSettings]:
    """Four silos as `lpsfed join` leaves them, and two that the aggregator has made up."""
    del impatient
    listed = tmp_path / "catalogue.txt"
    listed.write_text("".join(f"item-{number:02d}\n" for number in range(12)))
    common: dict[str, Any] = {
        "method": METHOD,
        "secure": True,
        "catalogue": listed,
        "policy": {"common_basis": "secure"},
        "trust_on_first_use": True,
        "aggregator_url": "http://127.0.0.1:1",
        "wait_seconds": 0.2,
    }
    names = {shard.name: shard for shard in silos(6)}
    told = {name: {"known_members": HONEST if name in HONEST else tuple(names)} for name in names}
    return {name: small_client(shard, tmp_path, **common, **told[name]) for name, shard in names.items()}


async def until_ended(federation: Federation, run: str) -> None:
    async def ended() -> bool:
        return (await federation.history(run))["phase"] in ("finished", "failed")

    await wait_until(ended)
    assert (await federation.history(run))["reason"] is None


async def isolate(federation: Federation, members: dict[str, ClientSettings]) -> httpx.AsyncClient:
    """Two more names, everybody else shut out, and a sum of what is left; the victim."""
    await federation.enter(*(members[name] for name in INVENTED))

    async def joined() -> bool:
        return len((await federation.operator.get("/v1/clients")).json()) == len(members)

    await wait_until(joined)
    for name in set(HONEST) - {VICTIM}:
        answer = await federation.operator.post(f"/v1/clients/{name}/quarantine", json={"reason": "looked odd"})
        assert answer.status_code == 201, answer.text
    await federation.start(part="basis", clients=3, rounds=1)
    return federation.silos[VICTIM]


@pytest.mark.parametrize("runs_before", [0, 1])
async def test_a_silo_is_in_no_sum_with_names_that_it_has_not_consented_to(
    members: dict[str, ClientSettings], tmp_path: Path, runs_before: int
) -> None:
    settings = small_aggregator(tmp_path / "aggregator", method=METHOD, secure=True)
    async with run_federation(settings) as federation:
        await federation.enter(*(members[name] for name in HONEST))
        if runs_before:
            await federation.start(part="basis", clients=4, rounds=1)
            await until_ended(federation, "run-1")
        victim, run = await isolate(federation, members), f"run-{runs_before + 1}"

        async def waiting() -> bool:
            return bool((await read(victim, "members")).get("waiting"))

        await wait_until(waiting)
        told = await read(victim, "members")
        assert tuple(one["client"] for one in told["waiting"]) == INVENTED and told["refused"] == run
        assert "expected members that this silo has consented to" in (await read(victim, "status"))["problem"]
        [warning] = [one for one in (await read(victim, "status"))["warnings"] if "consent" in one]
        assert warning.startswith(f"{run} waits for this silo's consent to client-5, client-6")
        assert "consent to client-5, client-6" in (await victim.get("/")).text
        assert (await federation.history(run))["phase"] == "open"

        # With the silo's consent the run goes on by itself; and what it had been told by that is what was at stake.
        keys = {one["client"]: one["key"] for one in told["waiting"]}
        if runs_before:
            keys_shown = (await victim.post("/v1/members/accept", json={"keys": keys})).json()
            assert "waiting" not in keys_shown or keys_shown["waiting"] == []
            await until_ended(federation, run)
            pairs = await kept_pairs(members[VICTIM], run)
            own = sum((matrix_of(members[name]) for name in INVENTED), np.zeros((12, 12)))
            np.testing.assert_array_equal(pairs - own, matrix_of(members[VICTIM]))


def matrix_of(settings: ClientSettings) -> Any:
    matrix = catalogue_matrix(load_listed_shard(settings), METHOD.catalogue)
    return (matrix.T @ matrix).toarray()


async def kept_pairs(settings: ClientSettings, run: str) -> Any:
    """What a silo has of that run's sums, once it has them."""
    folder = settings.state_directory / "basis"

    async def kept() -> bool:
        head = load_basis_head(folder)
        return head is not None and head.run == run

    await wait_until(kept)
    head = load_basis_head(folder)
    basis = None if head is None else load_basis(folder, head.digest)
    assert basis is not None and basis.pairs is not None
    return basis.pairs
