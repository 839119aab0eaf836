"""Streams are ChaCha20's, cancel between two clients, and leave nothing of what they cover."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

from shared.method.parameters import Parameters
from shared.protocol.secure import client, fixed_point, server, vectors
from shared.protocol.secure.fixed_point import Ring
from shared.protocol.secure.vectors import CHUNK, MaskStream

SEED, OTHER = bytes(32), bytes(range(32))
ZEROS = np.zeros(8, dtype=np.uint64)


def test_the_stream_of_piece_0_is_chacha20_s_first_block() -> None:
    """RFC 8439, appendix A.1, test vector 1: key, nonce and counter zero."""
    block = (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
    )
    assert vectors.add_masks(ZEROS, [MaskStream(SEED, 1)], piece=0).astype("<u8").tobytes().hex() == block


def test_another_piece_and_another_seed_give_other_streams() -> None:
    streams = [
        vectors.add_masks(ZEROS, [MaskStream(seed, 1)], piece=piece) for seed in (SEED, OTHER) for piece in (0, 1, 2)
    ]
    assert len({number for stream in streams for number in stream.tolist()}) == 6 * 8


def test_a_stream_goes_on_over_chunks_and_does_not_begin_anew() -> None:
    long = vectors.add_masks(np.zeros(2 * CHUNK + 5, dtype=np.uint64), [MaskStream(SEED, 1)], piece=3)
    assert np.unique(long).size == long.size
    short = vectors.add_masks(np.zeros(CHUNK + 1, dtype=np.uint64), [MaskStream(SEED, 1)], piece=3)
    np.testing.assert_array_equal(long[: CHUNK + 1], short)


def test_of_two_clients_the_first_by_name_adds_and_the_other_subtracts() -> None:
    assert (vectors.mask_sign("ada", "bob"), vectors.mask_sign("bob", "ada")) == (1, -1)
    values = fixed_point.encode(np.linspace(-3, 3, 8), "x")
    once = vectors.add_masks(values, [MaskStream(OTHER, 1)], piece=1)
    assert not np.any(once == values)
    np.testing.assert_array_equal(vectors.add_masks(once, [MaskStream(OTHER, -1)], piece=1), values)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 1, 4)])
def test_a_tensor_of_any_shape_and_memory_order_is_masked_alike_and_itself_left_alone(
    shape: tuple[int, ...], order: Any
) -> None:
    values = np.asarray(np.arange(np.prod(shape, dtype=int), dtype=np.uint64).reshape(shape), order=order)
    before, masked = values.copy(), vectors.add_masks(values, [MaskStream(OTHER, 1)], piece=0)
    flat = vectors.add_masks(np.ravel(values), [MaskStream(OTHER, 1)], piece=0)
    np.testing.assert_array_equal(masked, flat.reshape(shape))
    np.testing.assert_array_equal(values, before)
    assert masked.shape == shape and not np.any(masked == values)


def improbability(values: Ring) -> float:
    """Chi-square of the bytes against equal frequency -> the smaller tail's probability."""
    counts = np.bincount(np.ravel(values).view(np.uint8), minlength=256)
    statistic = float(((counts - counts.mean()) ** 2 / counts.mean()).sum())
    return float(min(chi2.sf(statistic, 255), chi2.cdf(statistic, 255)))


def uniform(values: Ring) -> bool:
    return improbability(values) > 1e-4


LARGE = 15_000


@pytest.fixture
def played(rehearsal: type, contents: Callable[..., dict[str, Parameters]], repeatable: None) -> Any:
    """Four clients with large tensors, of whom dan drops out after checking; the same masks in every run of a test."""
    del repeatable
    round_ = rehearsal(contents(4, size=LARGE))
    round_.until_checks(round_.contents)
    round_.late = round_.mask("dan")
    round_.send_masked(("ada", "bob", "cyd"))
    round_.close()
    round_.send_consents(("ada", "bob", "cyd"))
    round_.close()
    round_.send_answers(("ada", "bob", "cyd"))
    return round_


def test_a_masked_vector_looks_like_noise_and_the_same_without_masks_does_not(played: Any) -> None:
    for name in ("pooling.w", "predictive.w"):
        assert uniform(played.vectors["ada"][name])
        assert not uniform(fixed_point.encode(played.contents["ada"].arrays[name], name))


def test_so_does_what_two_clients_masked_added_and_subtracted(played: Any) -> None:
    ada, bob = played.vectors["ada"]["predictive.w"], played.vectors["bob"]["predictive.w"]
    assert uniform(ada + bob) and uniform(ada - bob)


def test_a_survivor_s_vector_stays_noise_when_all_that_the_aggregator_has_recovered_is_taken_away(played: Any) -> None:
    """Its own mask and the one with the drop-out are known by then; those with the other survivors remain."""
    known = server.restore_masks(played.round)
    own = client.list_mask_streams(played.ready["ada"])
    undone = [mask for mask in known if MaskStream(mask.seed, -mask.sign) in own]
    assert len(undone) == 2
    layout = vectors.vector_layout(played.round.terms.declaration)
    assert uniform(vectors.mask_vector(layout, played.vectors["ada"], undone)["predictive.w"])


def test_a_vector_that_comes_late_stays_noise_though_its_sender_s_mask_key_is_known(played: Any) -> None:
    """Double masking: the pairwise masks of dan are recovered, his own is not."""
    self_mask, *pairwise = client.list_mask_streams(played.ready["dan"])
    known = {mask.seed for mask in server.restore_masks(played.round)}
    assert {mask.seed for mask in pairwise} <= known and self_mask.seed not in known
    layout = vectors.vector_layout(played.round.terms.declaration)
    stripped = vectors.mask_vector(layout, played.late.vector, [MaskStream(m.seed, -m.sign) for m in pairwise])
    assert uniform(stripped["predictive.w"])
    bare = vectors.mask_vector(layout, stripped, [MaskStream(self_mask.seed, -1)])["predictive.w"]
    np.testing.assert_array_equal(bare, fixed_point.encode(played.contents["dan"].arrays["predictive.w"], "w"))
    assert not uniform(bare)


def test_the_scalar_s_piece_is_masked_too(played: Any) -> None:
    sent = played.vectors["ada"]["#scalars"]
    assert sent.shape == (1,) and sent != fixed_point.encode(np.array([played.contents["ada"].scalars["margin"]]), "m")
