"""run.py of a table -> what it adds to the harness. A table of plain runs needs no code of its own.

Where config.toml has blocks, run.py may define, each on its own:

- measure(work) -> dict: measures a row whose strategy is "run.py". Its "clients" (a list with client, recall, ndcg,
  test_users, users and items each) put the row in the ordinary tables; all else stands in the line under "extra".
- extra(work, experiment, outcome) -> dict: looks at a run of any strategy when it is over, before its state is removed;
  what it gives stands in the line as "extra".
- render(lines) -> str: Markdown that follows the table's own; `lines` are its measured lines of results.
- check(lines) -> list of complaints: what a quick run is held against besides the harness's own checks.

Where config.toml has none, the table is run.py's alone: run(config, quick=, data=, out=) -> rows, render(rows) and
check(rows); and where the paper claims something, claims(rows) -> [(claim, data, what was found, verdict)]. `config` is
config.toml, with `quick` its [quick] section laid over the rest.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.harness.plan import ROOT, read_toml
from shared.errors import SettingsError

OFFERS = ("run", "measure", "extra", "render", "check", "claims")
Function = Callable[..., Any]


def special_functions(name: str, root: Path = ROOT) -> dict[str, Function]:
    """The functions of a table's run.py by name; empty where there is none."""
    path = root / name / "run.py"
    if not path.is_file():
        return {}
    module = _load_module(name, path)
    return {offer: getattr(module, offer) for offer in OFFERS if hasattr(module, offer)}


def _load_module(name: str, path: Path) -> ModuleType:
    specification = importlib.util.spec_from_file_location(f"benchmarks.{name}.run", path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def is_own_table(name: str, root: Path = ROOT) -> bool:
    """Whether run.py measures the table as a whole."""
    return not {"blocks", "like"} & _read_table_config(name, root).keys()


def title_of(name: str, root: Path = ROOT) -> str:
    """The title in config.toml, or the folder's name."""
    return str(_read_table_config(name, root).get("title", name))


def run_own_table(name: str, *, quick: bool, data: Path | None, out: Path, root: Path = ROOT) -> list[dict[str, Any]]:
    """The rows of a table that its run.py measures as a whole."""
    offers, config = special_functions(name, root), _read_table_config(name, root)
    if "run" not in offers:
        raise SettingsError(f"{root / name}: expected blocks in config.toml, or a function run in run.py, got neither")
    small = config.pop("quick", {})
    out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = offers["run"](
        overlay_config(config, small) if quick else config, quick=quick, data=data, out=out
    )
    return rows


def overlay_config(whole: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`whole` with the values of `over`; tables that both have are merged in the same way."""
    both = {
        key: overlay_config(whole[key], over[key]) for key in whole.keys() & over.keys() if isinstance(whole[key], dict)
    }
    return {**whole, **over, **both}


def _read_table_config(name: str, root: Path) -> dict[str, Any]:
    return read_toml(root / name / "config.toml")
