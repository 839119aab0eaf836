"""Rows of the attacks -> Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.attacks.questions import ASKED
from benchmarks.common import render_table

Row = dict[str, Any]


def render(rows: list[Row]) -> str:
    """What each attacker finds, the controls, and the two worlds."""
    shadows, controls = ([row for row in rows if row["part"] == part] for part in ("shadows", "control"))
    return "\n\n".join(
        [
            _question_counts(shadows),
            _question_grid(shadows),
            _exposed_grid(shadows),
            _controls_section(controls),
            _worlds_section(rows),
            _best_test_section(rows),
        ]
    )


def _question_counts(rows: Sequence[Row]) -> str:
    targets = {row["question"]: row["trials"] // row["attacked"] for row in rows}
    lines = [
        f"- *{question}*: {ASKED[question]} ({count:,} targets in each shard)" for question, count in targets.items()
    ]
    head = "AUC with its 95 % interval; .500 is guessing. In brackets the share of targets found at 1 % false alarms."
    return "\n".join([head, "", *lines])


def _question_grid(rows: Sequence[Row]) -> str:
    """A line a mode, a column a question."""
    return _mode_table(rows, "attacker sees", lambda row: f"{_area_text(row)}{_rate_text(row)}")


def _exposed_grid(rows: Sequence[Row]) -> str:
    said = "The tenth of the targets that looked easiest to the attacker before it began:"
    return said + "\n\n" + _mode_table(rows, "attacker sees", lambda row: _area_text(row, "exposed_"))


def _mode_table(rows: Sequence[Row], first: str, cell: Any) -> str:
    questions = list(dict.fromkeys(row["question"] for row in rows))
    attacked = {row["mode"]: str(row["attacked"]) for row in rows}
    cells = {(row["mode"], row["question"]): cell(row) for row in rows}
    lines = [[mode, count, *(cells.get((mode, name), "") for name in questions)] for mode, count in attacked.items()]
    return render_table([first, "shards", *questions], lines)


def _area_text(row: Row, prefix: str = "") -> str:
    auc, low, high = (row[f"{prefix}{name}"] for name in ("auc", "low", "high"))
    return f"{auc:.3f} ({low:.3f} to {high:.3f})"


def _rate_text(row: Row) -> str:
    return "" if row["tpr"] is None else f" [{100 * row['tpr']:.1f} %]"


def _controls_section(rows: Sequence[Row]) -> str:
    said = "Controls: leaks that are there and must be found, and a truth that was shuffled, which cannot be."
    return said + "\n\n" + _mode_table(rows, "control", lambda row: f"{_area_text(row)}{_rate_text(row)}")


def _worlds_section(rows: Sequence[Row]) -> str:
    """Certain answers of one who knows all but the target."""
    own = [row for row in rows if row["part"] == "worlds"]
    lines = [[row["question"], row["channel"], f"{row['told']} of {row['targets']}"] for row in own]
    said = "Two worlds, open mode: an attacker who knows the shard but for the target, and the run's seed, trains both."
    return said + "\n\n" + render_table(["target", "what it looks at", "told apart for certain"], lines)


def _best_test_section(rows: Sequence[Row]) -> str:
    """The AUC of the best possible attack with noise."""
    own = [row for row in rows if row["part"] == "best"]
    lines = [
        [row["mode"], row["question"], f"{row['mean']:.4f}", f"{row['most']:.4f}", f"{row['allowed']:.4f}"]
        for row in own
    ]
    said = f"The same attacker with noise: the AUC of the best possible test, of {own[0]['targets']} targets of a kind."
    head = ["mode", "target", "mean", "most exposed", "what the noise allows at most"]
    return said + "\n\n" + render_table(head, lines)
