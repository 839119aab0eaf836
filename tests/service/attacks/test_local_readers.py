"""Another user of the machine reads what a silo or an aggregator has written: shard, events, ledger, models, tokens."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shared.files import remove_public_access
from simulation.cli import app
from tests.support import readable as readers
from tests.support.readable import USUAL, readable

umask = readers.umask


def test_what_a_command_writes_is_for_its_user_alone(tmp_path: Path) -> None:
    lines = "".join(f"u{user},i{(user * 3 + place) % 15}\n" for user in range(20) for place in range(10))
    (tmp_path / "data.csv").write_text("user,item\n" + lines)
    out = tmp_path / "made" / "shards"
    done = CliRunner().invoke(app, ["partition", str(tmp_path / "data.csv"), "--clients", "2", "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert json.loads((out / "client-1" / "shard.json").read_text())["name"] == "client-1"
    assert readable(tmp_path / "made") == {}
    assert os.umask(USUAL) == USUAL  # only while the command runs


def test_a_file_of_another_user_that_all_can_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, foreign = tmp_path / "shard", tmp_path / "shard" / "interactions.parquet"
    folder.mkdir()
    foreign.write_bytes(b"u1")
    (folder / "link").symlink_to("/etc/passwd")
    change = Path.chmod

    def refuse(path: Path, mode: int) -> None:
        if path == foreign:
            raise PermissionError(1, "Operation not permitted")
        change(path, mode)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "chmod", refuse)
        assert remove_public_access(folder) is None  # nobody else comes into the folder now
        folder.chmod(0o755)
        patched.setattr(Path, "chmod", lambda *_: refuse(foreign, 0))
        assert remove_public_access(folder) == foreign
    assert remove_public_access(folder) is None and readable(folder) == {"link": oct(0o777)}
    assert Path("/etc/passwd").stat().st_mode & stat.S_IROTH and remove_public_access(tmp_path / "none") is None
