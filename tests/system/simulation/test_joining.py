"""Who joins, partitions or asks needs no torch: in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support import joining
from tests.support.questions import LONGEST_SECONDS

aggregator, data, settings = joining.aggregator, joining.data, joining.settings


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
