"""An aggregator on a real socket, invitations of it, and small data of a silo that joins."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from aggregator_service.app import create_app
from aggregator_service.settings import AggregatorSettings
from shared.method.settings import BasisSettings, ServerStepSettings
from simulation.cli import app
from simulation.joining.invite import write_invitations
from tests.support.serving import serve
from tests.support.small import SMALL, TOKEN, small_aggregator

RATINGS = "user,item,rating,time\n" + "".join(
    f"u{user},i{(user * 3 + place) % 15},{1 + (user + place) % 5},{1_700_000_000 + place}\n"
    for user in range(20)
    for place in range(10)
)


@pytest.fixture
def settings(tmp_path: Path) -> AggregatorSettings:
    (tmp_path / "token").write_text(TOKEN)
    return small_aggregator(tmp_path / "aggregator")


@pytest.fixture
def aggregator(settings: AggregatorSettings) -> Iterator[str]:
    with serve(create_app(settings)) as url:
        yield url


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "ratings.csv"
    path.write_text(RATINGS)
    return path


def call(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def invite(aggregator: str, tmp_path: Path, *names: str) -> Result:
    return call("invite", *names, "--url", aggregator, "--operator-token-file", tmp_path / "token", "--out", tmp_path)


def join(tmp_path: Path, data: Path, *flags: object) -> Result:
    return call("join", tmp_path / "north.invite", "--data", data, "--folder", tmp_path / "north", "--no-start", *flags)


ITEMS = [f"i{number}" for number in range(12)]
BASIS = SMALL.model_copy(
    update={
        "catalogue": len(ITEMS),
        "basis": BasisSettings(kind="iterated", rank=3, words=2, least_silos=4),
        "start": "common",
        "server": "yogi",
        "server_step": ServerStepSettings(rate=0.02, magnitudes="off"),
        "similarity_floor": 1.0,
    }
)
AGREED = ("--policy", "common_basis=secure", "--catalogue", "catalogue.txt")


def write_listed_data() -> None:
    """In the current folder: data.csv, of these items, and catalogue.txt with their list."""
    rows = (f"u{user},i{(user * 5 + item) % 12},{1000 * user + item}\n" for user in range(12) for item in range(6))
    Path("data.csv").write_text("user,item,time\n" + "".join(rows))
    Path("catalogue.txt").write_text("".join(f"{item}\n" for item in sorted(ITEMS)))


@contextmanager
def invited(tmp_path: Path, **settings: Any) -> Iterator[tuple[AggregatorSettings, str]]:
    """An aggregator with these settings, and an invitation of it for `north`, which is the first of three."""
    chosen = small_aggregator(tmp_path / "aggregator", **settings)
    with serve(create_app(chosen)) as url:
        write_invitations(chosen, ["north", "south", "west"], url, tmp_path)
        yield chosen, url


def join_north(*flags: object) -> Result:
    """`lpsfed join` of data.csv by the invitation in the current folder."""
    return call("join", "north.invite", "--data", "data.csv", *flags)
