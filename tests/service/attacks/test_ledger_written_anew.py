"""A ledger that agrees with itself and tells another story than what was sent passed the privacy report.

Who: the silo itself, or whoever has its key and its state: heads and chain can be made anew. What they got: times,
questions and fields of the ledger as they liked them, as long as the bodies that had arrived were on it. And a patched
client could say 128 bits with the nonce of each request. Now a nonce is the beginning of the hash of the ledger's
entry, and the aggregator keeps the nonce of every body.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from audit.evidence import collect
from audit.evidence.case import open_case
from audit.report import make_report
from tests.support.damaging import chain
from tests.support.questions import finished

if TYPE_CHECKING:
    from conftest import Federate, Until

pytestmark = pytest.mark.anyio


def moved(entry: dict[str, Any]) -> dict[str, Any]:
    """As if it had been at another time."""
    return entry | {"time": "2020" + entry["time"][4:]}


async def test_a_ledger_that_was_written_anew_is_not_the_one_that_was_signed(
    federation: Federate, until: Until
) -> None:
    async with federation(2) as running:
        one, two = await running.enter()
        await running.start()
        await until(finished(one, two))
        parts = [await collect.read_aggregator_evidence(running.operator, "aggregator")]
        parts += [
            await collect.read_client_evidence(http, name) for http, name in ((one, "client-1"), (two, "client-2"))
        ]
    broken = {found.name: found.faults for found in make_report(open_case(parts)).findings if not found.held}
    assert broken == {}
    other = chain(map(moved, parts[1].entries))
    parts[1] = parts[1].model_copy(update={"entries": tuple(map(json.loads, other.splitlines()))})
    broken = {found.name: found.faults for found in make_report(open_case(parts)).findings if not found.held}
    assert list(broken) == ["entries"] and len(broken["entries"]) == 3
    assert "client-1, update of run-1 round 1, accepted: signed by another entry" in broken["entries"][1]
