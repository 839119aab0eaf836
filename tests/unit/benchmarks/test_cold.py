"""The discipline of cold items on a small data set: every method, silos, and what may not be a feature."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.cold import run
from benchmarks.cold.methods import METHODS
from benchmarks.cold.run import UserGains, read_catalogue
from benchmarks.harness.command import main

KINDS = ("crime", "comedy", "war", "western")
USERS, ITEMS = 60, 80


def write_films(folder: Path, tags: str = "") -> Path:
    """Users who like one kind of film each."""
    generator = np.random.default_rng(0)
    films = [f"{film},The {KINDS[film % 4]} {film} ({1950 + film}),{KINDS[film % 4]}" for film in range(ITEMS)]
    head = "movieId,title,genres" + (",tags" if tags else "")
    (folder / "movies.csv").write_text("\n".join([head, *(f"{one},{tags}" if tags else one for one in films)]) + "\n")
    liked = generator.random((USERS, ITEMS)) < np.where(
        np.arange(ITEMS) % 4 == np.arange(USERS)[:, None] % 4, 0.5, 0.05
    )
    pairs = [f"{user},{item}" for user, item in zip(*np.nonzero(liked), strict=True)]
    (folder / "ratings.csv").write_text("\n".join(["userId,movieId", *pairs]) + "\n")
    return folder


def test_every_method_is_measured_and_the_products_scores_lead_over_chance(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "DIVISIONS", (4,))
    assert main(["cold", str(write_films(tmp_path)), "--draws", "2", "--width", "8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    methods = found["methods"]
    assert methods.keys() == METHODS.keys() and (found["users"], found["items"]) == (USERS, ITEMS)
    assert found["encoder"].startswith("svd/8/")
    assert all(len(one["draws"]) == 2 and 0.0 <= one["ndcg@10"] <= 1.0 for one in methods.values())
    assert methods["cold"]["ndcg@10"] > methods["random"]["ndcg@10"] + methods["random"]["interval"]
    assert found["cold_over"].keys() == {"plain_text", "knn"}
    (silo,) = found["silos"]
    assert silo["users"] == 15 and silo["gain"]["ratio"] > 0.0
    places = found["places"]
    assert places["0"]["warm_ratio"] == 1.0 and places["0"]["cold_recall@10"] == 0.0
    assert places["1"]["warm_ratio"] > places["2"]["warm_ratio"] > 0.8
    assert places["0"]["warm_interval"] == 0.0 and all(places[count]["cold_interval"] > 0.0 for count in "12")
    assert places["2"]["cold_recall@10"] > places["1"]["cold_recall@10"] > 0.0


def test_tags_that_users_gave_are_no_features(tmp_path: Path) -> None:
    for name in ("without", "with", "beside"):
        (tmp_path / name).mkdir()
    plain = read_catalogue(write_films(tmp_path / "without"))
    tagged = read_catalogue(write_films(tmp_path / "with", tags="seen by many"))
    beside = write_films(tmp_path / "beside")
    (beside / "tags.csv").write_text("userId,movieId,tag,timestamp\n1,1,gangster,0\n")
    for one in (tagged, read_catalogue(beside)):
        np.testing.assert_array_equal(one.features, plain.features)


def test_the_interval_counts_a_user_of_two_draws_once() -> None:
    gains = np.array([0.0, 1.0, 0.0, 1.0])
    once, twice = UserGains([(np.arange(4), gains)]), UserGains([(np.arange(4), gains)] * 2)
    others = UserGains([(np.arange(4), gains), (np.arange(4, 8), gains)])
    assert once.value == twice.value == others.value == 0.5
    assert twice.interval_half_width() == pytest.approx(
        once.interval_half_width()
    ) and others.interval_half_width() == pytest.approx(once.interval_half_width() / np.sqrt(2.0))
    assert twice.interval_half_width(twice) == 0.0


def test_data_without_a_word_about_items_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (write_films(tmp_path) / "movies.csv").unlink()
    assert main(["cold", str(tmp_path)]) == 1
    assert "expected titles or attributes of the items" in capfd.readouterr().err
    assert main(["cold"]) == 2
