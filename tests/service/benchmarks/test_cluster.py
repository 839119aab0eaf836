"""A cell measured on a node of a Ray cluster gives the line that it gives on one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.run import keep_on_node, measure_on_node


def test_what_a_node_keeps_is_called_after_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    one = keep_on_node({"shards/a": {"x": b"1"}, "whole": {"y": b"2"}})
    assert (one / "shards" / "a" / "x").read_bytes() == b"1"
    assert keep_on_node({"shards/a": {"x": b"1"}, "whole": {"y": b"2"}}) == one
    assert keep_on_node({"shards/a": {"x": b"3"}, "whole": {"y": b"2"}}) != one


def test_a_node_gives_a_cell_its_own_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    seen: list[dict[str, Any]] = []

    def child(work: dict[str, Any], folder: Path, limit: float) -> dict[str, Any]:
        seen.append(work)
        return {"limit": limit, "there": folder.is_dir()}

    given = {"seed": 3, "shards": ["/elsewhere/a"], "whole": "/elsewhere/whole"}
    assert measure_on_node(child, given, {"a": {"x": b"1"}}, {"y": b"2"}, 5.0) == {"limit": 5.0, "there": True}
    assert seen[0]["seed"] == 3 and Path(seen[0]["shards"][0], "x").read_bytes() == b"1"
