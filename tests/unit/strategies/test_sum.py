"""A U32 tensor's updates are summed modulo 2^32, in memory and from disk, while the others are averaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from aggregator_service.aggregation.bodies import pack_state, prepare_body, unpack_state
from aggregator_service.storage.disk import Disk
from shared.method.parameters import BLOCK, Arrays, Parameters, State, Update, array_form, digest_arrays
from shared.protocol.wire import StoredArrays, body_pieces, decode_body, encode_body, open_parameters
from shared.strategies.aggregation import mean_of_updates

SHAPES = array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


def updates_of(count: int, size: int) -> list[Update]:
    rng = np.random.default_rng(3)
    return [
        Update(
            f"c{number}",
            {"pairs": rng.integers(0, 2**32, size, np.uint32), "w": rng.normal(size=(2, 3)).astype(np.float32)},
            {},
        )
        for number in range(count)
    ]


@given(SHAPES.flatmap(lambda shape: st.lists(arrays(np.uint32, shape), min_size=1, max_size=5)))
@settings(max_examples=60, deadline=None)
def test_the_sum_is_numpy_s_modulo_2_to_the_32(sent: list[np.ndarray]) -> None:
    updates = [Update(f"c{number}", {"x": value}, {}) for number, value in enumerate(sent)]
    total = mean_of_updates(State({"x": sent[0]}), updates).arrays["x"]
    expected = np.sum([value.astype(np.uint64) for value in sent], axis=0, dtype=np.uint64)
    assert total.dtype == np.uint32 and np.array_equal(total, expected % 2**32)


def test_the_others_are_averaged_and_reports_may_be_sums_too() -> None:
    updates = updates_of(3, 5)
    after = mean_of_updates(State({"w": updates[0].arrays["w"]}), updates)
    assert after.arrays["w"].dtype == np.float32 and after.reports["pairs"].dtype == np.uint32
    np.testing.assert_allclose(after.arrays["w"], np.mean([one.arrays["w"] for one in updates], axis=0), rtol=1e-6)


def test_a_sum_of_files_is_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    updates = updates_of(3, 2 * BLOCK + 3)
    for one in updates:
        (tmp_path / one.client).write_bytes(encode_body(Parameters(one.arrays)))
    stored = [Update(one.client, open_parameters(tmp_path / one.client)[1].arrays, {}) for one in updates]
    whole = mean_of_updates(State(updates[0].arrays), updates)
    monkeypatch.setattr(StoredArrays, "__getitem__", lambda *_: pytest.fail("a whole tensor was read"))
    assert digest_arrays(mean_of_updates(State(stored[0].arrays), stored).arrays) == digest_arrays(whole.arrays)


def test_a_state_with_sums_comes_back_from_its_file_and_is_answered_without_being_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = {"pairs": np.arange(2 * BLOCK + 3, dtype=np.uint32), "w": np.ones((2, 3), dtype=np.float32)}
    memory: Arrays = {"seen": np.array([2**32 - 1], dtype=np.uint32)}
    (tmp_path / "state").write_bytes(
        b"".join(body_pieces(pack_state(State(large, own={"north": memory}, memory=memory))))
    )
    monkeypatch.setattr(StoredArrays, "__getitem__", lambda *_: pytest.fail("a whole tensor was read"))
    found = unpack_state(open_parameters(tmp_path / "state")[1], {})
    assert [array_form(arrays, "seen") for arrays in (found.memory, found.own["north"])] == [("U32", (1,))] * 2
    body = prepare_body(Parameters(found.arrays), tmp_path, Disk())
    answered = decode_body(body.file.read())[1].arrays
    body.close()
    assert digest_arrays(answered) == digest_arrays(large) and answered["pairs"].dtype == np.uint32
