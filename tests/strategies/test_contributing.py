"""The algorithm that CONTRIBUTING shows in full is the file itself."""

from __future__ import annotations

import ast
import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
FEDPROX = (ROOT / "shared" / "strategies" / "fedprox.py").read_text(encoding="utf-8")


def test_the_guide_shows_all_of_fedprox_below_its_imports() -> None:
    block = re.search(r"```python\n(.*?)```", CONTRIBUTING, flags=re.S)
    assert block is not None
    above, shown, below = FEDPROX.partition(textwrap.dedent(block.group(1)).strip())
    assert shown and below.strip() == ""
    docstring, *imports = ast.parse(above).body
    assert isinstance(docstring, ast.Expr) and all(isinstance(one, ast.Import | ast.ImportFrom) for one in imports)
