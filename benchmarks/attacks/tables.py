"""Rows of the attacks -> Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.attacks.questions import ASKED
from benchmarks.common import markdown

Row = dict[str, Any]


def render(rows: list[Row]) -> str:
    """What each attacker finds, the controls, and the two worlds."""
    shadows, controls = ([row for row in rows if row["part"] == part] for part in ("shadows", "control"))
    return "\n\n".join(
        [_question_counts(shadows), _grid(shadows), _exposed(shadows), _controls(controls), _worlds(rows), _best(rows)]
    )


def _question_counts(rows: Sequence[Row]) -> str:
    targets = {row["question"]: row["trials"] // row["attacked"] for row in rows}
    lines = [
        f"- *{question}*: {ASKED[question]} ({count:,} targets in each shard)" for question, count in targets.items()
    ]
    head = "AUC with its 95 % interval; .500 is guessing. In brackets the share of targets found at 1 % false alarms."
    return "\n".join([head, "", *lines])


def _grid(rows: Sequence[Row]) -> str:
    """A line a mode, a column a question."""
    return _table(rows, "attacker sees", lambda row: f"{_area(row)}{_few(row)}")


def _exposed(rows: Sequence[Row]) -> str:
    said = "The tenth of the targets that looked easiest to the attacker before it began:"
    return said + "\n\n" + _table(rows, "attacker sees", lambda row: _area(row, "exposed_"))


def _table(rows: Sequence[Row], first: str, cell: Any) -> str:
    questions = list(dict.fromkeys(row["question"] for row in rows))
    attacked = {row["mode"]: str(row["attacked"]) for row in rows}
    cells = {(row["mode"], row["question"]): cell(row) for row in rows}
    lines = [[mode, count, *(cells.get((mode, one), "") for one in questions)] for mode, count in attacked.items()]
    return markdown([first, "shards", *questions], lines)


def _area(row: Row, prefix: str = "") -> str:
    auc, low, high = (row[f"{prefix}{name}"] for name in ("auc", "low", "high"))
    return f"{auc:.3f} ({low:.3f} to {high:.3f})"


def _few(row: Row) -> str:
    return "" if row["tpr"] is None else f" [{100 * row['tpr']:.1f} %]"


def _controls(rows: Sequence[Row]) -> str:
    said = "Controls: leaks that are there and must be found, and a truth that was shuffled, which cannot be."
    return said + "\n\n" + _table(rows, "control", lambda row: f"{_area(row)}{_few(row)}")


def _worlds(rows: Sequence[Row]) -> str:
    """Certain answers of one who knows all but the target."""
    own = [row for row in rows if row["part"] == "worlds"]
    lines = [[row["question"], row["channel"], f"{row['told']} of {row['targets']}"] for row in own]
    said = "Two worlds, open mode: an attacker who knows the shard but for the target, and the run's seed, trains both."
    return said + "\n\n" + markdown(["target", "what it looks at", "told apart for certain"], lines)


def _best(rows: Sequence[Row]) -> str:
    """The AUC of the best possible attack with noise."""
    own = [row for row in rows if row["part"] == "best"]
    lines = [
        [row["mode"], row["question"], f"{row['mean']:.4f}", f"{row['most']:.4f}", f"{row['allowed']:.4f}"]
        for row in own
    ]
    said = f"The same attacker with noise: the AUC of the best possible test, of {own[0]['targets']} targets of a kind."
    return said + "\n\n" + markdown(["mode", "target", "mean", "most exposed", "what the noise allows at most"], lines)
