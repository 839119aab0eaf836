"""Who joins, partitions or asks needs no torch: in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from aggregator_service.app import create_app
from aggregator_service.settings import AggregatorSettings
from simulation.cli import app
from tests.support.questions import LONGEST_SECONDS
from tests.support.serving import serve
from tests.support.small import TOKEN, small_aggregator

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


def test_who_joins_partitions_or_asks_needs_no_torch(aggregator: str, tmp_path: Path, data: Path) -> None:
    operator = ("--url", aggregator, "--operator-token-file", tmp_path / "token")
    of_run = ("--aggregator-url", aggregator, "--operator-token-file", tmp_path / "token")
    folder, users = tmp_path / "north", ("--users", tmp_path / "users.txt")
    (tmp_path / "users.txt").write_text("u1\n")
    calls = [
        ("invite", "north", *operator, "--out", tmp_path),
        ("join", tmp_path / "north.invite", "--data", data, "--folder", folder, "--no-start"),
        ("partition", data, "--out", tmp_path / "shards"),
        ("status", *of_run),
        (
            "recommend",
            *users,
            "--client-url",
            "http://127.0.0.1:1",
            "--application-key-file",
            folder / "application.key",
        ),
    ]
    words = [[str(word) for word in call] for call in calls]
    code = "import sys\nfrom typer.testing import CliRunner\nfrom simulation.cli import app\n"
    code += f"for words in {words}:\n"
    code += "    done = CliRunner().invoke(app, words)\n"
    code += "    print(words[0], done.exit_code, 'torch' in sys.modules, done.exception)\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LONGEST_SECONDS)
    told = [line.split(" ", 3) for line in done.stdout.splitlines()]
    assert [line[:3] for line in told[:4]] == [
        [name, "0", "False"] for name in ("invite", "join", "partition", "status")
    ], done
    assert told[4][:3] == ["recommend", "1", "False"], done
    assert "ConnectError" in told[4][3], done  # it went as far as the silo, which does not answer
