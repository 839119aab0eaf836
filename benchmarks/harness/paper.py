"""paper.toml of a table -> the paper's figures, by column and row, and the claims that the table is held against."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, ValidationInfo, field_validator

from benchmarks.harness.plan import FLOORS, ROOT, Part, read_toml
from client_service.evaluation.metrics import METRICS, PRIMARY
from shared.method.settings import validate_settings


class Claim(Part):
    """`row` is ahead of every row of `over` in `metric`; "floors" stands for all floors.

    part: in these clients alone (large, medium, small), or in a group of users or items ("users/tail"). least: what the
    row's mean should be at the least, in every metric, as a multiple of the best floor; then `over` is "floors".
    """

    says: str
    row: str = "LPSFed"
    over: tuple[str, ...] = Field(min_length=1)
    metric: str = PRIMARY
    part: str = Field("", pattern="^(large|medium|small|(users|items)/(tail|mid|head))?$")
    least: float | None = Field(None, gt=0)

    @field_validator("metric")
    @classmethod
    def _require_metric(cls, metric: str) -> str:
        if metric not in METRICS:
            raise ValueError(f"expected one of {', '.join(METRICS)}, got {metric!r}")
        return metric

    @field_validator("least")
    @classmethod
    def _of_the_floors(cls, least: float | None, info: ValidationInfo) -> float | None:
        if least is not None and info.data.get("over") != (FLOORS,):
            raise ValueError(f'expected over = ["{FLOORS}"] beside it')
        return least


class Paper(Part):
    """columns: column -> row -> figures by name (recall, ndcg, tail, epoch, ...). notes: what differs, in words."""

    source: str
    claims: tuple[Claim, ...] = ()
    columns: dict[str, dict[str, dict[str, Any]]] = Field({})
    notes: tuple[str, ...] = ()

    def find_figure(self, column: str, row: str, name: str) -> Any | None:
        """A figure of the paper, or None where the paper has none."""
        return self.columns.get(column, {}).get(row, {}).get(name)


def read_paper(name: str, root: Path = ROOT) -> Paper:
    """The paper's figures for a table; none where the folder has no paper.toml."""
    path = root / name / "paper.toml"
    if not path.exists():
        return Paper(source="not in the paper")
    return validate_settings(Paper, read_toml(path))
