"""The spectrum is computed once a shard and cut-off, and anew whenever what is kept does not fit or cannot be read."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import client_service.training.spectrum_cache
from client_service.data.interactions import Shard
from client_service.training.spectrum_cache import cached_spectrum
from shared.method.spectrum import RANKING, Accuracy, Spectrum, low_spectrum


@pytest.fixture
def solved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The cut-offs with which the solver was called."""
    calls: list[int] = []

    def counted(interactions: object, cutoff: int, exponent: float = 0.5, *, accuracy: Accuracy) -> Spectrum:
        calls.append(cutoff)
        return low_spectrum(interactions, cutoff, exponent, accuracy=accuracy)

    monkeypatch.setattr(client_service.training.spectrum_cache, "low_spectrum", counted)
    return calls


def assert_equal(found: Spectrum, expected: Spectrum) -> None:
    for name in ("singular", "users", "items"):
        assert getattr(found, name).dtype == np.float64
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


def kept(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def test_the_second_time_nothing_is_solved_and_every_bit_is_the_same(
    planted: Shard, tmp_path: Path, solved: list[int]
) -> None:
    first = cached_spectrum(planted, 5, tmp_path / "kept")
    second = cached_spectrum(planted, 5, tmp_path / "kept")
    assert solved == [5]
    assert_equal(first, low_spectrum(planted.train, 5))
    assert_equal(second, first)


def test_another_digest_or_cutoff_is_solved_anew_and_replaces_the_old_file(
    planted: Shard, tmp_path: Path, solved: list[int]
) -> None:
    cached_spectrum(planted, 5, tmp_path)
    changed: Any = SimpleNamespace(digest="f" * 64, train=planted.train[::-1])
    assert_equal(cached_spectrum(changed, 5, tmp_path), low_spectrum(changed.train, 5))
    cached_spectrum(changed, 3, tmp_path)
    assert solved == [5, 5, 3]
    assert [path.name for path in kept(tmp_path)] == [f"spectrum-{'f' * 16}-3.safetensors"]


@pytest.mark.parametrize("broken", ["empty", "cut off", "text", "foreign"])
def test_a_file_that_cannot_be_read_is_solved_anew_and_mended(
    planted: Shard, tmp_path: Path, solved: list[int], broken: str
) -> None:
    expected = cached_spectrum(planted, 5, tmp_path)
    (path,) = kept(tmp_path)
    content = path.read_bytes()
    if broken == "foreign":
        save_file({"something": np.zeros(2)}, path)
    else:
        path.write_bytes({"empty": b"", "cut off": content[:-9], "text": b"not a spectrum at all"}[broken])
    assert_equal(cached_spectrum(planted, 5, tmp_path), expected)
    assert solved == [5, 5] and path.read_bytes() == content
    cached_spectrum(planted, 5, tmp_path)
    assert solved == [5, 5]


def test_without_a_folder_nothing_is_kept(planted: Shard, tmp_path: Path, solved: list[int]) -> None:
    for _ in range(2):
        assert_equal(cached_spectrum(planted, 5, None), low_spectrum(planted.train, 5))
    assert solved == [5, 5] and kept(tmp_path) == []


def test_other_files_in_the_folder_stay(planted: Shard, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_text("keep me")
    cached_spectrum(planted, 5, tmp_path)
    assert (tmp_path / "model.safetensors").read_text() == "keep me"


def test_a_spectrum_that_scorers_rank_by_is_kept_beside_and_read_again(
    planted: Shard, tmp_path: Path, solved: list[int]
) -> None:
    first = cached_spectrum(planted, 5, tmp_path).ranking_spectrum(planted.train, 7, 0.25)
    again = cached_spectrum(planted, 5, tmp_path)
    assert_equal(again.ranking_spectrum(planted.train, 7, 0.25), first)
    assert solved == [5, 7]
    assert_equal(first, low_spectrum(planted.train, 7, 0.25))
    assert len(kept(tmp_path)) == 2
    changed: Any = SimpleNamespace(digest="f" * 64, train=planted.train[::-1])
    cached_spectrum(changed, 5, tmp_path).ranking_spectrum(changed.train, 7, 0.25)
    assert {path.name.split("-")[1] for path in kept(tmp_path)} == {"f" * 16}


def test_both_spectra_of_a_graph_are_computed_at_once_where_both_are_needed(
    planted: Shard, tmp_path: Path, solved: list[int]
) -> None:
    found = cached_spectrum(planted, 5, tmp_path, beside=(7, 0.25))
    assert sorted(solved) == [5, 7] and len(kept(tmp_path)) == 2
    assert_equal(found, low_spectrum(planted.train, 5))
    assert_equal(found.ranking_spectrum(planted.train, 7, 0.25), low_spectrum(planted.train, 7, 0.25))
    assert sorted(solved) == [5, 7]


def test_a_part_of_a_kept_spectrum_finds_what_is_kept_beside_the_whole(planted: Shard, tmp_path: Path) -> None:
    cached_spectrum(planted, 5, tmp_path).cut(3).ranking_spectrum(planted.train, 7, 0.25)
    assert len(kept(tmp_path)) == 2


def test_what_only_ranks_is_kept_apart_from_what_is_trained_on(
    planted: Shard, tmp_path: Path, solved: list[int]
) -> None:
    for _ in range(2):
        cached_spectrum(planted, 5, tmp_path, RANKING).ranking_spectrum(planted.train, 7, 0.25)
        cached_spectrum(planted, 5, tmp_path)
    assert solved == [5, 7, 5]
    assert len(kept(tmp_path)) == 3
