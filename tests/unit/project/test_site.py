"""The documentation site has every page, its reference has what the code has, and its tutorial is kept without outputs.

`make site` checks each link and anchor, and `make notebook` runs the tutorial; both need packages that are not here.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from shared.strategies import STRATEGIES
from simulation.cli.commands import COMMANDS

ROOT = Path(__file__).parents[3]
NAVIGATION = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), flags=re.M)
TABLES = {"docs/tables.md", "docs/session-tables.md"}  # `make site` writes them from what the benchmarks have measured
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module of docs/site, which is no package."""
    monkeypatch.syspath_prepend(str(ROOT / "docs/site"))
    specification = importlib.util.spec_from_file_location(f"site_{name}", ROOT / f"docs/site/{name}.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    for loaded in ("notebook", "reference"):
        sys.modules.pop(loaded, None)
    return module


def test_every_page_is_in_the_navigation_once(monkeypatch: pytest.MonkeyPatch) -> None:
    written = {str(path.relative_to(ROOT)) for path in load("stage", monkeypatch).markdown_files()}
    made = {path for path in NAVIGATION if path.startswith("docs/reference/")} | {"docs/tutorial.md"} | TABLES
    assert len(NAVIGATION) == len(set(NAVIGATION)) and set(NAVIGATION) == written | made
    assert len(made) == 7 and len(written) > 30


def test_the_reference_has_every_command_call_and_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = load("reference", monkeypatch).reference_pages()
    assert {f"docs/reference/{name}" for name in pages} <= set(NAVIGATION)
    assert [name for name in COMMANDS if f"## lpsfed {name}\n" not in pages["command-line.md"]] == []
    assert "### lpsfed ledger verify\n" in pages["command-line.md"]
    assert "## GET /v1/users/{user}/recommendations\n" in pages["client-api.md"]
    assert "## POST /v1/runs\n" in pages["aggregator-api.md"]
    assert [name for name in STRATEGIES if f"| `{name}` |" not in pages["strategies.md"]] == []


def test_the_site_is_staged_as_the_repository_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = load("stage", monkeypatch)
    monkeypatch.setattr(stage, "EXECUTED", tmp_path / "none.ipynb")
    stage.stage_pages(tmp_path / "site")
    assert {path for path in NAVIGATION if not (tmp_path / "site" / path).is_file()} == TABLES
    assert (tmp_path / "site/docs/figures/flames_serving.svg").is_file()


def test_the_page_of_settings_is_the_code_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Written anew by `python docs/site/reference.py`."""
    page = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
    assert page == load("reference", monkeypatch).settings_page()


def test_the_tutorial_is_kept_without_outputs() -> None:
    cells = json.loads((ROOT / "docs/tutorial.ipynb").read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert len(code) > 6 and [cell["id"] for cell in code if cell["outputs"] or cell["execution_count"]] == []


def test_a_notebook_s_outputs_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs: list[dict[str, Any]] = [
        {"output_type": "stream", "text": ["\x1b[31mred\x1b[0m\n", "blue\n"]},
        {"output_type": "execute_result", "data": {"text/plain": ["42"]}},
        {"output_type": "display_data", "data": {"image/png": PIXEL, "text/plain": ["<Figure>"]}},
        {"output_type": "stream", "text": []},
    ]
    cells = [
        {"cell_type": "markdown", "source": ["# Title"]},
        {"cell_type": "code", "source": ["print(1)"], "outputs": outputs},
    ]
    page, pictures = load("notebook", monkeypatch).notebook_page({"cells": cells})
    assert page == (
        "# Title\n\n```python\nprint(1)\n```\n\n```text\nred\nblue\n```\n\n```text\n42\n```\n\n"
        "![What the cell has drawn](tutorial-1.png)\n"
    )
    assert pictures["tutorial-1.png"].startswith(b"\x89PNG")


def test_the_diagrams_script_is_the_listed_one() -> None:
    digest = hashlib.sha256((ROOT / "docs/assets/mermaid.tiny.js").read_bytes()).hexdigest()
    assert digest in (ROOT / "docs/packages.md").read_text(encoding="utf-8")
