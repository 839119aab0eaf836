"""A client holds its limits of time against the aggregator's once it knows them, and takes part all the same."""

from __future__ import annotations

import pytest

from tests.support.given import Federate, Until
from tests.support.questions import read

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(("timeout", "deadline", "warned"), [(30.0, 3600.0, 0), (70.0, 3600.0, 1), (70.0, 165.0, 2)])
async def test_what_does_not_fit_is_shown_and_nothing_is_refused(
    federation: Federate, until: Until, timeout: float, deadline: float, warned: int
) -> None:
    async with federation(1, first={"timeout_seconds": timeout}) as running:
        [http] = await running.enter()
        await running.start(rounds=1, deadline_seconds=deadline)
        await until(running.finished)
        warnings = [one for one in (await read(http, "status"))["warnings"] if "_seconds" in one]
    assert len(warnings) == warned
    signature = "timeout_seconds: expected less than the aggregator's signature_seconds = 60"
    assert all(signature in one for one in warnings[:1])
    assert all("the run's deadline_seconds = 165" in one for one in warnings[1:])
