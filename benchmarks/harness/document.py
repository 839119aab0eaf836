"""Page of all tables and its pictures, written from every results.jsonl."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.cells import Cell, plan_cells
from benchmarks.harness.claims import Finding, claims_section, judge_claims
from benchmarks.harness.plan import (
    ROOT,
    UNTRAINED,
    Paper,
    Plan,
    is_own_table,
    read_paper,
    read_plan,
    special_functions,
    table_names,
    title_of,
)
from benchmarks.harness.plots import draw_table
from benchmarks.harness.store import FILE, KnownLines, Line, read_known, read_lines
from benchmarks.harness.summary import Column, summarise_plan
from benchmarks.harness.tables import DAGGER, VIEWS, client_tables, overall_table, verdict_tables
from simulation.reports.averages import FEW_SIGN, FEW_WORDS

DOCUMENT, FIGURES = "tables.md", "figures"
INTRODUCTION = f"""# Tables

Written by `make site` and by `make benchmark NAME=report` (`python -m benchmarks report`, into build/results) from the
results.jsonl of each table; nothing here is typed by hand. A table that is not measured yet says so.

How to read it. Every method runs through the same services, shards, rounds and evaluation: all users with a test item,
all items of the client as candidates, the round chosen on validation items, the test items read once. Figures are the
client mean (every client with a test user counts once, as in the paper), with the standard deviation over partitions
and seeds, and beside it the user mean (every test user counts once): a client of a few users can move the first, not
the second. {FEW_SIGN}: a client with {FEW_WORDS}, whose figures are mostly chance. *Floors*
(popularity, low-pass, ridge, EASE) are what each client has without training a network; *local* shares nothing;
*centralised* trains the same encoder on the whole data set, with the edges that the cut drops. *{UNTRAINED}* is the
closed-form score that LPSFed starts at. *To best floor* says what the whole method gains over what a client has without
a network; *to untrained* says what training gains over the closed-form score that it starts at (rows that start
elsewhere, as item tables do at noise, are held against it all the same). Both are ratios of means over the partitions
that the row has been measured on, with the best floor of each, at the client mean / at the user mean. *Paper*: the
figure printed in the paper, on its own data, cut and evaluation, which are not ours: compare the order of rows, not the
figures.

A verdict holds one row against another over units: a unit is one client of one partition, its figure the mean over
seeds. Wilcoxon's signed-rank test, corrected after Holm over the rows compared, one metric at a time; 95 % bootstrap
interval of the mean difference. *Ahead* and *behind* need a corrected p below .05, and the ranks and the whole interval
on the same side of 0; *unproven* is what has the last two alone. Two partitions of four clients are 8 units, on which
few verdicts can survive: the least two-sided p is 2 / 256, and after Holm over more than 6 rows none is left below .05.
Each table says how many units and rows there are, and *no difference seen* is not *no difference*. Both partitions cut
the same data, so that the true p is larger rather than smaller.

{DAGGER}: the method trains a table of items that several clients have. In the spectral cut no two clients share an
item, so that it can learn nothing from the others' tables there. FedHGNN also averages its attention weights, and F2MF
two losses of groups of users, in any cut.
"""


@dataclass(frozen=True)
class ResultsTable:
    """A plan with all its measured results."""

    plan: Plan
    cells: list[Cell]
    columns: list[Column]
    paper: Paper

    @property
    def lines(self) -> list[Line]:
        """The measured lines of the table, each once."""
        samples = (sample for column in self.columns for row in column.rows.values() for sample in row)
        return list({id(sample.line): sample.line for sample in samples}.values())


def gather_table(plan: Plan, known: KnownLines, root: Path = ROOT) -> ResultsTable:
    """Collects a plan with its cells, results and the paper's figures."""
    cells = plan_cells(plan, frozenset(special_functions(plan.name, root)))
    return ResultsTable(plan, cells, summarise_plan(plan, cells, known), read_paper(plan.name, root))


def write_document(docs: Path, root: Path = ROOT) -> Path:
    """Writes the page of all tables with its pictures into the folder `docs`."""
    known = read_known(root)
    own = {name: read_lines(root / name / FILE) for name in table_names(root) if is_own_table(name, root)}
    planned = [gather_table(read_plan(name, root=root), known, root) for name in table_names(root) if name not in own]
    parts = [INTRODUCTION, *_contents_table(planned, own, root), *claims_section(_all_findings(planned, own, root))]
    for table in planned:
        picture = docs / FIGURES / f"{table.plan.name}.svg"
        drawn = draw_table(table.plan, table.columns, picture)
        if not drawn:
            picture.unlink(missing_ok=True)
        parts += table_section(table, root, f"{FIGURES}/{picture.name}" if drawn else None)
    for name, lines in own.items():
        parts += _own_section(name, lines, root)
    docs.mkdir(parents=True, exist_ok=True)
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).rstrip() + "\n"
    (docs / DOCUMENT).write_text(text, encoding="utf-8")
    return docs / DOCUMENT


def _all_findings(planned: Sequence[ResultsTable], own: Mapping[str, Sequence[Line]], root: Path) -> list[Finding]:
    every = [
        finding for table in planned for finding in judge_claims(table.plan.name, table.paper.claims, table.columns)
    ]
    for name, lines in own.items():
        judge = special_functions(name, root).get("claims")
        every += [Finding(name, *judged) for judged in judge(list(lines))] if judge is not None and lines else []
    return every


def _own_section(name: str, lines: Sequence[Line], root: Path) -> list[str]:
    """Renders a table that its run.py measures."""
    said = f"{title_of(name, root)}. `make benchmark NAME={name}`. Measured: {_date_range(lines)}."
    head = [f"## {name}", "", said, ""]
    return [*head, special_functions(name, root)["render"](list(lines)), ""] if lines else head


def _contents_table(planned: Sequence[ResultsTable], own: Mapping[str, Sequence[Line]], root: Path) -> list[str]:
    lines = ["| table | what | cells measured | dates |", "| --- | --- | --- | --- |"]
    for table in planned:
        done, wanted = (sum(getattr(c, n) for c in table.columns) for n in ("measured", "wanted"))
        name = table.plan.name
        lines.append(f"| [{name}](#{name}) | {table.plan.title} | {done} of {wanted} | {_date_range(table.lines)} |")
    for name, rows in own.items():
        lines.append(f"| [{name}](#{name}) | {title_of(name, root)} | {len(rows)} rows | {_date_range(rows)} |")
    return [*lines, ""]


def table_section(table: ResultsTable, root: Path = ROOT, picture: str | None = None) -> list[str]:
    """Renders one table as Markdown."""
    plan = table.plan
    said = f"{plan.title} ({plan.source}). `make benchmark NAME={plan.name}`. Measured: {_date_range(table.lines)}."
    lines = [f"## {plan.name}", "", said, ""]
    lines += [f"- {note}" for note in table.paper.notes] + [""]
    lines += [f"![{plan.title}]({picture})", ""] if picture else []
    for column in table.columns if plan.view != "special" else ():
        lines += _column_section(plan, column, table.paper)
    render = special_functions(plan.name, root).get("render")
    if render is not None and table.lines:
        lines += [render(table.lines), ""]
    return lines


def _column_section(plan: Plan, column: Column, paper: Paper) -> list[str]:
    lines = [f"### {plan.name}, {column.name}", "", _describe_coverage(column), ""]
    lines += [f"- {label} cannot be measured: {why}" for label, why in column.problems.items()] + [""]
    if not column.rows:
        return lines
    lines += overall_table(plan, column, paper)
    if plan.view in VIEWS:
        lines += VIEWS[plan.view](plan, column, paper)
    return [*lines, *verdict_tables(plan, column), *client_tables(plan, column)]


def _describe_coverage(column: Column) -> str:
    """Describes how many cells are measured, and how."""
    said = f"{column.measured} of {column.wanted} cells measured."
    lines = [sample.line for samples in column.rows.values() for sample in samples]
    if not lines:
        return said
    kept = sorted({100 * line["edges_kept"] for line in lines if line.get("edges_kept") is not None})
    edges = f" Training edges kept by the cut: {', '.join(f'{share:.1f} %' for share in kept)}." if kept else ""
    rounds = sorted({str(line["rounds"]) for line in lines if line["rounds"]})
    devices = sorted({line["device"] for line in lines})
    return (
        f"{said}{edges} Rounds: {', '.join(rounds) or 'none'}; device: {', '.join(devices)}; {_join_versions(lines)}."
    )


def _join_versions(lines: Sequence[Line]) -> str:
    versions = {f"{name} {number}" for line in lines for name, number in line["versions"].items()}
    return ", ".join(sorted(versions))


def _date_range(lines: Sequence[dict[str, Any]]) -> str:
    dates = sorted({line["date"] for line in lines if "date" in line})
    if not dates:
        return "nothing yet"
    return dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
