"""Kept sums are for silos that the federation has let in: one that is shut out, and has added nothing, gets none.

Who: a silo that joined, was quarantined before its data were in any sum, and asks for the sums of the others.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from client_service.sums.storage import load_basis_head
from shared.method.settings import BasisSettings
from simulation.experiments.experiment import Experiment
from simulation.experiments.in_process import open_federation
from tests.service.attacks.test_difference_of_two_sums import VICTIM, shut_out
from tests.support.misled import ending_of, start
from tests.support.questions import has_problem, read, wait_until
from tests.support.small import SMALL

pytestmark = pytest.mark.anyio


async def test_a_quarantined_silo_that_is_in_no_sum_gets_none(
    silos: Callable[[int], tuple[Path, ...]], tmp_path: Path
) -> None:
    alone = {**SMALL.strategy, "train": False, "send": False}
    method = SMALL.model_copy(update={"basis": BasisSettings(kind="exact"), "strategy": alone})
    one = Experiment(silos(4), tmp_path / "run", method, rounds=1, device="cpu", secure=True)
    out = one.state_folder(next(path for path in one.shards if path.name == VICTIM)) / "basis"
    async with open_federation(one) as federation:

        async def joined() -> bool:
            answer = await federation.operator.get("/v1/clients")
            return VICTIM in {member["client"] for member in answer.json()}

        await wait_until(joined)
        await shut_out(federation)
        assert (await start(federation, one, part="basis", clients=3)).status_code == 201
        assert (await ending_of(federation, "run-1"))["reason"] is None
        await wait_until(has_problem(federation.clients[VICTIM], "it gets no sums"))
        assert load_basis_head(out) is None
        lifted = await federation.operator.delete(f"/v1/clients/{VICTIM}/quarantine")
        assert lifted.status_code == 200

        async def served() -> bool:
            return (await read(federation.clients[VICTIM], "quality"))["finished"] is True

        await wait_until(served)
        head = load_basis_head(out)
        assert head is not None and not head.included
