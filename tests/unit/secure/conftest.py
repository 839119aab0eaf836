"""Rehearsals of secure rounds as fixtures, and keys that are the same in every run of a test."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from shared.method.parameters import Parameters
from shared.protocol.secure import graph
from shared.protocol.secure.group import ORDER
from shared.protocol.secure.messages import GraphPlan
from tests.support.rehearsal import GraphRehearsal, Rehearsal, contents_of


@pytest.fixture(scope="module", params=["full", "graph"])
def rehearsal(request: pytest.FixtureRequest) -> Iterator[type[Rehearsal]]:
    """Rounds on the full graph, and on one where each client has drawn everybody: what holds here holds there.

    For a module: longer, the patched bounds would hold for tests of the true ones.
    """
    if request.param == "full":
        yield Rehearsal
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph, "FEWEST_MEMBERS", 3)
        patch.setattr(graph, "exposure_bits", lambda *_: -99.0)
        patch.setattr(
            graph,
            "plan_graph",
            lambda members, _: GraphPlan(
                degree=max(2, members - 1), threshold=members * 2 // 3 + 1, masks=max(1, members - 1)
            ),
        )
        yield GraphRehearsal


@pytest.fixture(scope="session")
def contents() -> Callable[..., dict[str, Parameters]]:
    return contents_of


@pytest.fixture
def repeatable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and seeds are the same in every run of a test, so that a statistic of masks cannot fail by chance."""
    numbers = count()

    def draw() -> int:
        return 1 + int.from_bytes(hashlib.sha256(str(next(numbers)).encode()).digest()) % (ORDER - 1)

    monkeypatch.setattr("shared.protocol.secure.group.draw_scalar", draw)
