"""A state with arrays of its clients' own goes into one file and comes back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from aggregator_service.aggregation.bodies import pack_state, unpack_state
from shared.method.parameters import Parameters, State
from shared.protocol.wire import encode_body, open_parameters

if TYPE_CHECKING:
    from conftest import Running

NAME = "pooling.output.bias"


def row(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def through_a_file(state: State, folder: Path) -> State:
    (folder / "state").write_bytes(encode_body(pack_state(state)))
    return unpack_state(open_parameters(folder / "state")[1], state.latest)


def test_what_belongs_to_all_and_what_belongs_to_one_come_back_apart(tmp_path: Path) -> None:
    own = {"north": {NAME: row(3.0), "b": row(5.0)}, "north-east": {NAME: row(4.0), "b": row(6.0)}}
    state = State({NAME: row(1.0), "b": row(2.0)}, {"margin": 0.5}, {"north": {"rho": 0.1}}, own)
    found = through_a_file(state, tmp_path)
    assert {name: v.tolist() for name, v in found.arrays.items()} == {NAME: [1.0], "b": [2.0]}
    assert {c: {n: v.tolist() for n, v in arrays.items()} for c, arrays in found.own.items()} == {
        "north": {NAME: [3.0], "b": [5.0]},
        "north-east": {NAME: [4.0], "b": [6.0]},
    }
    assert (found.scalars, found.latest) == ({"margin": 0.5}, {"north": {"rho": 0.1}})
    assert (len(found.arrays), len(found.own["north"])) == (2, 2)


def test_a_state_without_any_is_the_file_of_its_arrays_and_scalars(tmp_path: Path) -> None:
    state = State({NAME: row(1.0, 2.0)}, {"margin": 0.25})
    assert dict(pack_state(state).arrays) == state.arrays
    assert through_a_file(state, tmp_path).own == {}


def test_a_client_s_arrays_are_not_among_those_of_all(tmp_path: Path) -> None:
    found = through_a_file(State({NAME: row(1.0)}, own={"north": {NAME: row(3.0)}}), tmp_path)
    with pytest.raises(KeyError):
        found.own["south"]
    assert list(found.arrays) == [NAME]


@pytest.mark.anyio
async def test_a_client_gets_what_was_made_for_it_also_after_a_restart(
    running: Running, tensors: Callable[[bytes], dict[str, np.ndarray]]
) -> None:
    async with running(strategy="fedpub") as federation:
        north, south = await federation.opened()
        for client, value in ((north, 1.0), (south, -1.0)):
            biased = client.arrays(0.0) | {NAME: row(value, 0.0, 0.0, 0.0)}
            assert (await client.put(1, encode_body(Parameters(biased, {})))).status_code == 201
        before = [(await client.personalised(1)).content for client in (north, south)]
    # The one's models point away from the other's: e^-20 of the other's are in each answer.
    assert [float(tensors(body)[NAME][0]) for body in before] == pytest.approx([1.0, -1.0], abs=1e-6)
    async with running(strategy="fedpub") as federation:
        clients = [federation.client(name) for name in ("north", "south")]
        assert [(await client.personalised(1)).content for client in clients] == before
