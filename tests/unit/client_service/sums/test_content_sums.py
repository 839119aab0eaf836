"""Content sums at a silo: exact over silos without a common item, without the own part, refused where they must be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from scipy import sparse

from client_service.data.interactions import Shard, build_shard_from_matrices
from client_service.models.closed_form.content import (
    ContentSums,
    add_constant,
    content_settings,
    find_item_features,
    sum_content,
)
from client_service.models.closed_form.scorer_part import TrainingGraph
from client_service.sums.content import CONTENT_SILO_SUM, ContentStatistics, digest_content
from client_service.sums.silo_sum import SumRound, Sums
from client_service.sums.storage import load_basis, save_basis
from client_service.text.projection import ProjectionEncoder
from shared.errors import DataError, ProtocolError, SettingsError
from shared.method.parameters import Float32
from shared.method.settings import method_settings
from shared.method.spectrum import Spectrum
from shared.strategies.sum_strategy import declare_sums
from shared.sums.content import FORMS, PAIRS, PROFILES, count_features
from shared.sums.sum import EMPTY_PART_DIGEST

METHOD = method_settings(**{"basis.kind": "content"})
WORDS = ("space rocket", "river forest", "kitchen soup", "football goal", "castle ghost")


def silo(place: int, users: int = 30) -> Shard:
    """A silo with a catalogue of its own: no item and no user is in another."""
    generator = np.random.default_rng(place)
    train = sparse.csr_array((generator.random((users, 12)) < 0.3).astype(float))
    none = sparse.csr_array(train.shape)
    names, ids = ([f"{kind}{place}-{one:02}" for one in range(size)] for kind, size in (("u", users), ("i", 12)))
    made = build_shard_from_matrices(f"silo-{place}", names, ids, (train, none, none))
    return replace(made, titles=tuple(f"{WORDS[one % 5]} {place} {one}" for one in range(12)))


def added(parts: Sequence[Sums]) -> Sums:
    return {name: np.sum([part[name] for part in parts], axis=0, dtype=np.uint32) for name in parts[0]}


def at(shard: Shard, sums: dict[int, Sums] | None = None) -> SumRound:
    return SumRound(CONTENT_SILO_SUM.count(shard, METHOD), METHOD, 0, 4, 1, sums or {})


def own_sums(shard: Shard) -> ContentSums:
    features = find_item_features(shard)
    assert features is not None
    return sum_content(shard.train, add_constant(features.values))


def finished(shard: Shard, total: Sums, *, included: bool = True) -> ContentStatistics:
    found = CONTENT_SILO_SUM.finish(at(shard, {1: total})._replace(included=included))
    assert isinstance(found, ContentStatistics)
    return found


def test_the_others_sums_are_those_of_their_data_to_1e_8_and_alike_in_every_silo() -> None:
    silos = [silo(place) for place in range(4)]
    total = added([CONTENT_SILO_SUM.add(at(one)) for one in silos])
    for place, one in enumerate(silos):
        found = finished(one, total)
        expected = [own_sums(other) for number, other in enumerate(silos) if number != place]
        pooled = ContentSums(*(np.sum(matrices, axis=0) for matrices in zip(*expected, strict=True)))
        for part, whole in zip(found.sums, pooled, strict=True):
            assert np.abs(part - whole).max() < 1e-8 * np.abs(whole).max()
        assert found.digest == finished(silos[0], total).digest


def test_a_silo_that_joined_later_has_the_sums_of_all_that_were_there() -> None:
    silos = [silo(place) for place in range(4)]
    total = added([CONTENT_SILO_SUM.add(at(one)) for one in silos[:3]])
    late = finished(silos[3], total, included=False)
    np.testing.assert_allclose(
        late.profiles, finished(silos[0], total).profiles + own_sums(silos[0]).profiles, atol=1e-5
    )


def test_a_silo_that_was_killed_before_its_part_had_left_takes_nothing_out() -> None:
    """It has written down that its part would leave, and the round closed without it."""
    silos = [silo(place, users=10) for place in range(3)]
    large = silo(3, users=400)
    total = added([CONTENT_SILO_SUM.add(at(one)) for one in silos])
    found, whole = finished(large, total), finished(large, total, included=False)
    np.testing.assert_array_equal(found.profiles, whole.profiles)


def test_what_is_kept_has_nothing_of_the_silo_and_a_damaged_file_is_refused(tmp_path: Path) -> None:
    """So that an erased user is in no file: what the others have added does not change with the silo's own data."""
    silos = [silo(place) for place in range(4)]
    total = added([CONTENT_SILO_SUM.add(at(one)) for one in silos])
    found = finished(silos[0], total)
    others = added([CONTENT_SILO_SUM.add(at(one)) for one in silos[1:]])
    np.testing.assert_array_equal(found.profiles[np.triu_indices(65)], FORMS[PROFILES].decode(others[PROFILES]))
    save_basis(tmp_path, "run-1", found)
    kept = load_basis(tmp_path, found.digest)
    assert isinstance(kept, ContentStatistics) and kept.digest == found.digest
    np.testing.assert_array_equal(kept.pairs, found.pairs)
    (file,) = tmp_path.glob("basis-*.safetensors")
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    with pytest.raises(DataError, match="expected a common basis"):
        load_basis(tmp_path, found.digest)


def test_sums_that_an_earlier_version_kept_without_those_of_items_are_read(tmp_path: Path) -> None:
    silos = [silo(place) for place in range(3)]
    found = finished(silos[0], added([CONTENT_SILO_SUM.add(at(one)) for one in silos]))
    earlier = replace(found, items=None)
    save_basis(tmp_path, "run-1", earlier)
    kept = load_basis(tmp_path, earlier.digest)
    assert isinstance(kept, ContentStatistics) and kept.sums.items is None
    np.testing.assert_array_equal(kept.profiles, found.profiles)


def test_a_silo_without_text_or_with_another_encoder_adds_zeros_and_says_so() -> None:
    other = method_settings(**{"basis.kind": "content", "basis.encoder": "glove/50/1"})
    for shard, method, size in ((replace(silo(0), titles=None), METHOD, 65), (silo(0), other, 51)):
        counted = CONTENT_SILO_SUM.count(shard, method)
        part = CONTENT_SILO_SUM.add(SumRound(counted, method, 0, 4, 1, {}))
        assert not any(one.any() for one in part.values())
        assert part[PROFILES].shape == (3, size * (size + 1) // 2)
        assert digest_content(shard, method).catalogue == EMPTY_PART_DIGEST
    assert digest_content(silo(0), METHOD).catalogue != EMPTY_PART_DIGEST
    assert count_features("glove/50/1") == 51
    for name in ("glove", "glove/0/1", "glove/5000/1", "glove/x/1"):
        with pytest.raises(SettingsError, match=r"^sums.content.encoder: expected the name of an encoder"):
            declare_sums(method_settings(**{"basis.kind": "content", "basis.encoder": name}))


def test_numbers_of_any_size_add_up_over_silos_and_too_large_ones_are_refused_without_being_told() -> None:
    generator = np.random.default_rng(0)
    parts = [generator.standard_normal(50) * 10.0 ** generator.uniform(-3, 11, 50) for _ in range(7)]
    words = np.sum([FORMS[PROFILES].encode(one, 7, PROFILES) for one in parts], axis=0, dtype=np.uint32)
    np.testing.assert_allclose(FORMS[PROFILES].decode(words), np.sum(parts, axis=0), rtol=1e-11, atol=7 * 2.0**-21)
    for wrong in (np.array([FORMS[PROFILES].limit / 3]), np.array([np.nan]), np.array([-np.inf])):
        with pytest.raises(ProtocolError, match=r"^content.pairs: expected values below .* in size, got 1 others$"):
            FORMS[PROFILES].encode(wrong, 3, PAIRS)
    with pytest.raises(ProtocolError, match="expected at most 65,536 silos"):
        FORMS[PAIRS].encode(np.zeros(1), 70_000, PAIRS)


def test_sums_that_no_data_can_have_are_refused() -> None:
    silos = [silo(place) for place in range(3)]
    parts = [CONTENT_SILO_SUM.add(at(one)) for one in silos]
    lie = own_sums(silos[2]).profiles - 1e4 * np.eye(65)
    false = {**parts[2], PROFILES: FORMS[PROFILES].encode(lie[np.triu_indices(65)], 4, PROFILES)}
    with pytest.raises(ProtocolError, match="expected content sums that data can have"):
        finished(silos[0], added([*parts[:2], false]))


def test_stamps_change_with_the_titles_and_those_of_the_training_pairs_do_not() -> None:
    """So that sums before and after a change of titles alone are known to tell of this silo."""
    shard = silo(0)
    before, after = (
        digest_content(one, METHOD) for one in (shard, replace(shard, titles=("other", *(shard.titles or ())[1:])))
    )
    assert (before.training, before.catalogue) == (after.training, after.catalogue)
    assert before.all_data != after.all_data and before.catalogue == digest_content(silo(1), METHOD).catalogue


def test_silos_whose_words_tell_nothing_of_taste_use_no_sum_of_the_others_and_all_others_do() -> None:
    """Over six small shops of each kind, beside three with words that do tell."""
    known = [draw_taste(100 + place, users=60) for place in range(3)]
    parts = [sum_content(liked, add_constant(features)) for liked, features in known]
    others = ContentSums(*(np.sum(one, axis=0) for one in zip(*parts, strict=True)))
    spectrum = cast("Spectrum", None)  # content does not look at it
    for shuffled in (False, True):
        drawn = [draw_taste(place, users=25, shuffled=shuffled) for place in range(6)]
        used = [bool(content_settings(TrainingGraph(liked, spectrum, features, others))) for liked, features in drawn]
        assert used == [not shuffled] * 6


def draw_taste(seed: int, *, users: int, shuffled: bool = False) -> tuple[sparse.csr_array, Float32]:
    """Users of five tastes and 200 items of five kinds, some popular, with their features; shuffled: other items'."""
    generator = np.random.default_rng(seed)
    kinds, popular = np.arange(200) % 5, np.minimum(2.0 * generator.gamma(0.5, 1.0, 200), 2.5)
    liked = generator.random((users, 200)) < popular * np.where(kinds == np.arange(users)[:, None] % 5, 0.35, 0.05)
    told = generator.permutation(kinds) if shuffled else kinds
    titles = [f"{WORDS[kind]} {seed} {item}" for item, kind in enumerate(told)]
    return sparse.csr_array(liked.astype(float)), ProjectionEncoder(64).encode(titles, {})
