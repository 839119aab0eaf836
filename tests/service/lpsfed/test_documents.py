"""What docs/serving.md shows runs as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from client_service.data.interactions import Shard
from tests.service.lpsfed.conftest import KEY
from tests.support.questions import LONGEST_SECONDS

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs/serving.md").read_text(encoding="utf-8")


def test_the_snippets_run_one_after_the_other(silo: str, shard: Shard, tmp_path: Path) -> None:
    snippets = re.findall(r"```python\n(.*?)```", TEXT, flags=re.S)
    assert len(snippets) == 3
    (tmp_path / "shop-1").mkdir()
    (tmp_path / "shop-1/application.key").write_text(KEY)
    program = "\n".join(snippets).replace("http://127.0.0.1:8801", silo).replace('"4711"', f'"{shard.user_ids[0]}"')
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LONGEST_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["2", "2"]


def test_the_client_is_imported_without_the_rest() -> None:
    code = "import sys, lpsfed; print({name.partition('.')[0] for name in sys.modules} & set(sys.argv[1:]))"
    others = ["torch", "polars", "numpy", "scipy", "fastapi", "shared", "client_service", "simulation", "typer"]
    words = [sys.executable, "-c", code, *others]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST_SECONDS, check=True)
    assert done.stdout == "set()\n"
