"""A U32 tensor is masked in 4 bytes a number, and what comes out is exactly the sum that an open round has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy.stats import chi2

from shared.errors import ProtocolError
from shared.method.declaration import Declaration
from shared.method.parameters import BLOCK, Form, Parameters, State, UInt32, Update
from shared.protocol.masked_wire import decode_masked, encode_masked, masked_body_size, open_masked
from shared.protocol.secure import fixed_point, server, vectors
from shared.protocol.secure.messages import MaskedHeader
from shared.protocol.secure.vectors import CHUNK, MaskedUpdate, MaskStream
from shared.protocol.wire import StoredArrays
from shared.strategies.aggregation import mean_of_updates

NAMES = ("ada", "bob", "cyd", "dan", "eve", "fay")
SUM, WEIGHTS = "basis.pairs", "pooling.w"
SEED = bytes(range(32))


def content(seed: int, *, shape: tuple[int, ...] = (40, 3), most: int = 2**32) -> Parameters:
    """Integers, the fewer the smaller, beside weights."""
    rng = np.random.default_rng(seed)
    drawn = {SUM: rng.integers(0, most, shape, np.uint32), WEIGHTS: rng.normal(size=(4, 5)).astype(np.float32)}
    return Parameters(drawn, {"margin": 0.5, "rho": 0.25})


def open_sum(contents: list[Parameters]) -> UInt32:
    updates = [Update(f"c{number}", one.arrays, one.scalars) for number, one in enumerate(contents)]
    total: UInt32 = mean_of_updates(State(contents[0].arrays), updates).arrays[SUM]
    return total


@pytest.mark.parametrize(
    ("lost", "summed"),
    [
        ({}, NAMES),
        ({"before_keys": ("ada",)}, NAMES[1:]),
        ({"after_keys": ("bob",)}, ("ada", *NAMES[2:])),
        ({"after_shares": ("cyd",)}, ("ada", "bob", *NAMES[3:])),
        ({"after_masked": ("dan",)}, NAMES),
    ],
    ids=str,
)
def test_the_sum_is_the_open_one_whoever_drops_out(
    rehearsal: type, lost: dict[str, tuple[str, ...]], summed: tuple[str, ...]
) -> None:
    everybody = {name: content(seed) for seed, name in enumerate(NAMES)}
    got = rehearsal(everybody).play(**lost).arrays[SUM]
    assert got.dtype == np.uint32
    np.testing.assert_array_equal(got, open_sum([everybody[name] for name in summed]))


def test_the_weights_beside_it_are_averaged_as_without_it(rehearsal: type) -> None:
    everybody = {name: content(seed) for seed, name in enumerate(NAMES[:3])}
    alone = {name: Parameters({WEIGHTS: one.arrays[WEIGHTS]}, one.scalars) for name, one in everybody.items()}
    got, expected = (rehearsal(contents).play() for contents in (everybody, alone))
    assert got.arrays[WEIGHTS].dtype == np.float32 and got.scalars == expected.scalars
    np.testing.assert_array_equal(got.arrays[WEIGHTS], expected.arrays[WEIGHTS])


@given(st.lists(array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4), min_size=1, max_size=3), st.data())
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_integers_of_any_shapes_are_summed_modulo_2_to_the_32(
    rehearsal: type, shapes: list[tuple[int, ...]], data: st.DataObject
) -> None:
    contents = {
        name: Parameters({f"w{n}": data.draw(arrays(np.uint32, shape)) for n, shape in enumerate(shapes)}, {})
        for name in NAMES[:4]
    }
    got = rehearsal(contents).play(after_shares=("bob",))
    for name, value in got.arrays.items():
        rows = [one.arrays[name].astype(object) for client, one in contents.items() if client != "bob"]
        assert value.dtype == np.uint32 and value.shape == rows[0].shape
        assert np.array_equal(value.astype(object), sum(rows) % 2**32)


@pytest.fixture
def played(rehearsal: type, repeatable: None) -> Any:
    """Three clients with small counts in more than one block, and the same masks in every run of a test."""
    del repeatable
    made = rehearsal({name: content(n, shape=(BLOCK + 7,), most=50) for n, name in enumerate(NAMES[:3])})
    made.play()
    return made


def masked(played: Any, client: str = "ada") -> MaskedUpdate:
    """Its masked vector under the header that it has sent."""
    pieces = played.vectors[client]
    said = {
        "run": "run-1",
        "round": 3,
        "client": client,
        "digest": vectors.digest_vector(pieces),
        "scalars": {"rho": 0.25},
    }
    return MaskedUpdate(MaskedHeader.model_validate(said), pieces)


def improbability(values: UInt32) -> float:
    """Chi-square of the bytes against equal frequency -> the smaller tail's probability."""
    counts = np.bincount(np.ravel(values).view(np.uint8), minlength=256)
    statistic = float(((counts - counts.mean()) ** 2 / counts.mean()).sum())
    return float(min(chi2.sf(statistic, 255), chi2.cdf(statistic, 255)))


def test_masked_counts_look_like_noise_and_the_same_without_masks_do_not(played: Any) -> None:
    ada, bob = (played.vectors[name][SUM] for name in ("ada", "bob"))
    assert ada.dtype == np.uint32
    assert min(improbability(ada), improbability(ada + bob), improbability(ada - bob)) > 1e-4
    assert improbability(played.contents["ada"].arrays[SUM]) < 1e-4


def test_the_sum_of_bodies_on_disk_is_read_in_parts_and_is_the_same(
    played: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for client in played.vectors:
        (tmp_path / client).write_bytes(encode_masked(masked(played, client)))
    monkeypatch.setattr(StoredArrays, "__getitem__", lambda *_: pytest.fail("a whole tensor was read"))
    got = server.unmask_mean(played.round, {client: StoredArrays(tmp_path / client) for client in played.vectors})
    np.testing.assert_array_equal(got.arrays[SUM], open_sum(list(played.contents.values())))


def test_a_masked_body_has_4_bytes_a_number_and_is_read_alike_from_memory_and_disk(played: Any, tmp_path: Path) -> None:
    sent, declaration = masked(played), played.round.terms.declaration
    body = encode_masked(sent)
    assert len(body) == masked_body_size(declaration, sent.header)
    assert vectors.vector_layout(declaration)[SUM].bytes == 4 * (BLOCK + 7)
    (tmp_path / "body").write_bytes(body)
    for found in (decode_masked(declaration, body), open_masked(declaration, tmp_path / "body")):
        assert found.header == sent.header and vectors.digest_vector(found.vector) == sent.header.digest
        assert all(np.array_equal(found.vector[name], sent.vector[name]) for name in sent.vector)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        (SUM, lambda value: value.astype(np.uint64)),
        (SUM, lambda value: value.view(np.float32)),
        (SUM, lambda value: value.reshape(1, -1)),
        (WEIGHTS, lambda value: value.astype(np.uint32)),
        (SUM, lambda value: value % np.uint32(50)),
    ],
    ids=["U64 for U32", "F32 for U32", "another shape", "U32 for U64", "not masked"],
)
def test_another_type_or_shape_and_open_counts_are_refused(
    played: Any, tmp_path: Path, name: str, change: Callable[[Any], Any]
) -> None:
    declaration, sent = played.round.terms.declaration, masked(played)
    pieces = {**sent.vector, name: change(sent.vector[name])}
    header = sent.header.model_copy(update={"digest": vectors.digest_vector(pieces)})
    body = encode_masked(MaskedUpdate(header, pieces))
    (tmp_path / "body").write_bytes(body)
    for read in (lambda: decode_masked(declaration, body), lambda: open_masked(declaration, tmp_path / "body")):
        with pytest.raises(ProtocolError, match="expected"):
            read()


def test_the_stream_of_piece_0_is_chacha20_s_first_block_in_numbers_of_4_bytes() -> None:
    """RFC 8439, appendix A.1, test vector 1: key, nonce and counter zero."""
    found = vectors.add_masks(np.zeros(4, dtype=np.uint32), [MaskStream(bytes(32), 1)], piece=0)
    assert found.dtype == np.uint32 and found.astype("<u4").tobytes().hex() == "76b8e0ada0f13d90405d6ae55386bd28"


def test_a_stream_goes_on_over_chunks_and_is_taken_away_again() -> None:
    values = np.arange(2 * CHUNK + 5, dtype=np.uint32)
    once = vectors.add_masks(values, [MaskStream(SEED, 1)], piece=3)
    short = vectors.add_masks(values[: CHUNK + 1], [MaskStream(SEED, 1)], piece=3)
    np.testing.assert_array_equal(once[: CHUNK + 1], short)
    stream = once - values
    assert not np.array_equal(stream[:CHUNK], stream[CHUNK : 2 * CHUNK])
    np.testing.assert_array_equal(vectors.add_masks(once, [MaskStream(SEED, -1)], piece=3), values)


SIGNED = np.linspace(-16, 16, 64)  # as multiples of 2^-16 in two's complement


@pytest.mark.parametrize(
    ("values", "open_to_view"),
    [
        (np.arange(16), True),
        (np.full(64, 2**20), True),
        (np.full(64, -(2**20)), True),
        (np.rint(SIGNED * 2**16), True),
        (np.r_[np.arange(9), np.full(7, 2**31)], True),
        (np.r_[np.arange(8), np.full(8, 2**31)], False),
        (np.full(64, 2**20 + 1), False),
        (np.arange(15), False),
        (np.random.default_rng(0).integers(0, 2**32, 3 * BLOCK), False),
    ],
    ids=["counts", "limit", "negative", "products", "most", "half", "beyond", "few", "masked"],
)
def test_integers_lie_open_where_more_than_half_of_sixteen_are_small(values: Any, open_to_view: bool) -> None:
    ring = np.asarray(values).astype(np.int64).astype(np.uint32)
    assert vectors.is_unmasked({"x": ring}, "x") is open_to_view


def test_the_same_numbers_in_fixed_point_lie_open_as_ever() -> None:
    pieces = {"x": fixed_point.encode(np.linspace(-4096, 4096, 16), "x")}
    assert vectors.is_unmasked(pieces, "x")
    assert not vectors.is_unmasked({"x": pieces["x"] + np.uint64(2**60)}, "x")


def test_pieces_are_in_the_ring_of_their_type() -> None:
    declaration = Declaration.model_validate(
        {
            "strategy": "lpsfed",
            "tensors": [{"name": "z", "dtype": "U32", "shape": [2]}, {"name": "a", "shape": [3]}],
            "scalars": ["margin", "rho"],
        }
    )
    assert vectors.vector_layout(declaration) == {
        "a": Form("U64", (3,)),
        "z": Form("U32", (2,)),
        "#scalars": Form("U64", (1,)),
    }
    arrays_ = {"z": np.array([7, 2**32 - 1], dtype=np.uint32), "a": np.zeros(3, dtype=np.float32)}
    encoded = vectors.encode_vector(declaration, Parameters(arrays_, {"margin": 0.0, "rho": 0.0}))
    assert encoded["z"].tolist() == [7, 2**32 - 1] and encoded["a"].dtype == np.uint64
