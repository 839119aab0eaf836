"""A body to be answered: whole, in pieces, and dropped by whoever no longer wants it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import IO, cast

import numpy as np
import pytest

from aggregator_service.aggregation.bodies import CHUNK, LONGEST_IN_MEMORY, Body, prepare_body
from aggregator_service.storage.disk import Disk
from shared.method.parameters import Parameters
from shared.protocol.wire import encode_body

pytestmark = pytest.mark.anyio

SMALL = Parameters({"b": np.zeros(3, np.float32)})
LARGE = Parameters({"b": np.arange(LONGEST_IN_MEMORY, dtype=np.float32)})


@pytest.fixture(params=[SMALL, LARGE], ids=["in memory", "in a file"])
def parameters(request: pytest.FixtureRequest) -> Parameters:
    return cast(Parameters, request.param)


@pytest.fixture
def body(parameters: Parameters, tmp_path: Path) -> Body:
    return prepare_body(parameters, tmp_path, Disk())


def dropped(body: list[Body]) -> IO[bytes]:
    """Its file, after the last one who held the body has let it go."""
    return body.pop().file


async def test_its_pieces_are_the_body_and_then_it_is_closed(body: Body, parameters: Parameters) -> None:
    pieces = [piece async for piece in body.stream()]
    assert b"".join(pieces) == encode_body(parameters) and len(encode_body(parameters)) == body.size
    assert max(map(len, pieces)) <= CHUNK and body.file.closed


async def test_whoever_takes_no_more_leaves_nothing_open(body: Body) -> None:
    async with aclosing(cast("AsyncGenerator[bytes]", body.stream())) as pieces:
        await anext(pieces)
        assert not body.file.closed
    assert body.file.closed


def test_a_body_that_nobody_asked_for_in_the_end_leaves_nothing_open(parameters: Parameters, tmp_path: Path) -> None:
    assert dropped([prepare_body(parameters, tmp_path, Disk())]).closed
    assert not list(tmp_path.iterdir())
