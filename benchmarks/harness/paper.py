"""paper.toml of a table -> the paper's own figures, by column and row."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from pydantic import Field

from benchmarks.harness.plan import ROOT, Part
from shared.errors import SettingsError
from shared.settings import validated


class Paper(Part):
    """columns: column -> row -> figures by name (recall, ndcg, tail, epoch, ...). notes: what differs, in words."""

    source: str
    columns: dict[str, dict[str, dict[str, Any]]] = Field({})
    notes: tuple[str, ...] = ()

    def figure(self, column: str, row: str, name: str) -> Any | None:
        return self.columns.get(column, {}).get(row, {}).get(name)


def read_paper(name: str, root: Path = ROOT) -> Paper:
    """The paper's figures for a table; none where the folder has no paper.toml."""
    path = root / name / "paper.toml"
    if not path.exists():
        return Paper(source="not in the paper")
    try:
        return validated(Paper, tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{path}: expected readable TOML ({error})") from None
