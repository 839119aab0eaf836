"""A cell of a benchmark is measured in a process of its own."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness import child, run
from benchmarks.harness.cells import plan_cells
from benchmarks.harness.data import Cache
from benchmarks.harness.plan import UNTRAINED, Plan, read_plan
from benchmarks.harness.run import Bench, run_cells
from benchmarks.harness.store import KnownLines


@pytest.mark.processes
def test_a_cell_is_measured_in_a_process_of_its_own(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But of these three cells only the federation's is."""
    config = root / "table0" / "config.toml"
    text = config.read_text(encoding="utf-8").replace("400x240", "200x100").replace("rounds = 3", "rounds = 1")
    config.write_text("groups = true\n" + text, encoding="utf-8")
    plan = read_plan("table0", quick=False, root=root)
    small = {"width": 4, "layers": 1, "cutoff": 8, "negatives": 4, "anchor.users": 40, "anchor.items": 30}
    plan = plan.model_copy(update={"method": small | {"anchor.edges": 200}, "seeds": (0,), "blocks": two(plan)})
    wanted = [cell for cell in plan_cells(plan) if cell.row.label in ("floors", "LPSFed", "centralised")]
    known, apart = KnownLines(), run.run_child

    def run_child(work: dict[str, Any], folder: Path, limit_seconds: float) -> dict[str, Any]:
        if work["strategy"] == "lpsfed":
            return apart(work, folder, limit_seconds)
        monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(work)))
        assert child.main() == 0
        found: dict[str, Any] = json.loads((folder / "figures.json").read_text(encoding="utf-8"))
        return found

    monkeypatch.setattr(run, "run_child", run_child)
    assert run_cells(Bench(Cache(tmp_path / "cache", None), root, root, device="cpu"), wanted, known, shown=False) == []
    floors, fed, whole = (known.find_line(cell) for cell in wanted)
    assert floors is not None and set(floors["floors"]) == {"popularity", "low-pass", "ridge", "EASE", UNTRAINED}
    assert fed is not None and whole is not None
    for line in (fed, whole):
        assert [one["client"] for one in line["clients"]] == ["client-1", "client-2"]
        assert all(0.0 <= one[metric] <= 1.0 for one in line["clients"] for metric in ("recall", "ndcg"))
        assert set(line["clients"][0]["groups"]["users"]) == {"tail", "mid", "head"}
        assert line["seconds"]["total"] >= line["seconds"]["spectrum"] > 0 and len(line["digests"]) == 2
        assert line["peak_mib"] > 0 and line["wall_seconds"] > 0 and line["device"] == "cpu"
    tested = [[one["test_users"] for one in line["clients"]] for line in (fed, whole)]
    assert tested[0] == tested[1]
    assert all(one["bytes_up"] > 0 for one in fed["clients"]) and not any(one["bytes_up"] for one in whole["clients"])
    assert not any((tmp_path / "cache" / "state").iterdir())


def two(plan: Plan) -> tuple[Any, ...]:
    return tuple(block.model_copy(update={"clients": 2}) for block in plan.blocks)
