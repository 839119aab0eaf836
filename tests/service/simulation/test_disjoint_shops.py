"""Shops without a common item learn from each other, and the report says what the small one has of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from simulation.cli import app
from simulation.experiments.disjoint_shops import COLD, WARM, join_figures

KINDS = ("crime", "comedy", "war", "western", "drama", "horror")
USERS, ITEMS = 160, 160


def write_films(folder: Path) -> Path:
    """Users who like two kinds of films each, and films whose titles and genres tell the kind."""
    generator = np.random.default_rng(0)
    kinds = np.arange(ITEMS) % len(KINDS)
    films = [f"{film},The {KINDS[kind]} {film},{KINDS[kind]}" for film, kind in enumerate(kinds)]
    (folder / "movies.csv").write_text("\n".join(["movieId,title,genres", *films]) + "\n")
    taste = np.arange(USERS)[:, None] % len(KINDS)
    liked = generator.random((USERS, ITEMS)) < np.where((kinds == taste) | (kinds == (taste + 1) % 6), 0.6, 0.05)
    pairs = [f"{user},{item}" for user, item in zip(*np.nonzero(liked), strict=True)]
    (folder / "ratings.csv").write_text("\n".join(["userId,movieId", *pairs]) + "\n")
    return folder


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, object], Path]:
    data, out = write_films(tmp_path_factory.mktemp("films")), tmp_path_factory.mktemp("run")
    words = ("simulate", str(data), "--scenario", "disjoint", "--small", "12", "--secure", "--no-floors", "--json")
    done = CliRunner().invoke(app, [*words, "--out", str(out / "run")])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout), out / "run"


def test_the_small_shop_has_figures_of_its_lists_and_its_cold_items(report: tuple[dict[str, object], Path]) -> None:
    silos = report[0]["silos"]
    assert isinstance(silos, list) and len(silos) == 4
    (small,) = [one for one in silos if one.get("small")]
    assert small["shop_users"] <= 12 and min(small["judged"].values()) > 12
    assert small["today"].keys() == {WARM} and small["plain_text"].keys() == {COLD}
    for way in ("own_text", "together"):
        assert small[way].keys() >= {WARM, COLD} and all(0.0 < small[way][kind] <= 1.0 for kind in (WARM, COLD))
    assert len(small["gains"]) == 4
    assert small["together"][COLD] > 0.2  # 4 cold items of 6 kinds: what all have taught ranks them


def test_the_services_have_summed_content_alone_and_the_figures_follow_from_that(
    report: tuple[dict[str, object], Path],
) -> None:
    folder = report[1]
    ledger = (folder / "client-4" / "ledger.jsonl").read_text("utf-8")
    assert "content.profiles" in ledger and "basis.counts" not in ledger
    assert json.loads((folder / "report.json").read_text("utf-8"))["silos"] == report[0]["silos"]


def test_figures_of_one_name_are_joined() -> None:
    row = {"client": "a", "together": {"ndcg@20": 0.1}}
    assert join_figures(row, {"together": {WARM: 0.2}, "small": True}) == {
        "client": "a",
        "together": {"ndcg@20": 0.1, WARM: 0.2},
        "small": True,
    }
