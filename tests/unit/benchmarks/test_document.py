"""The page of all tables, written from lines of results, and what a quick run is held against."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.harness.cells import Cell, plan_cells
from benchmarks.harness.command import table_complaints
from benchmarks.harness.document import gather_table, table_section, write_document
from benchmarks.harness.plan import Plan
from benchmarks.harness.store import KnownLines, Line, append_line
from benchmarks.harness.tables import format_number

Answer = Callable[[Cell], Line]


@pytest.fixture
def lines(plan: Plan, answer: Answer) -> list[Line]:
    return [answer(cell) for cell in plan_cells(plan)]


def rows(text: str, label: str) -> list[list[str]]:
    """The cells of every table row that begins with the label."""
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return [row for row in found if row[0] == label and len(row) > 1]


def test_a_table_shows_ours_the_paper_s_the_floors_and_the_ratio(plan: Plan, lines: list[Line], root: Path) -> None:
    text = "\n".join(table_section(gather_table(plan, KnownLines(lines), root), root))
    # LPSFed: clients at .42 + .01 seed and .44 + .01 seed, so that the means are .43 .44 .45
    assert rows(text, "LPSFed")[0] == [
        "LPSFed", "3", "3", ".4400 ± .0100", ".4433", ".1234", "2.933 / 2.660", "2.200 / 2.078",
        ".2200 ± .0050", ".2217", ".0567", "2.933 / 2.660", "2.200 / 2.078",
    ]  # fmt: skip
    assert rows(text, "popularity")[0][:5] == ["popularity", "1", "-", ".1500", ".1667"]
    assert "13 of 13 cells measured. Training edges kept by the cut: 50.0 %." in text
    assert "- Paper: other data." in text and "Measured: 2026-01-02." in text


def test_rows_that_need_shared_items_have_a_dagger(plan: Plan, lines: list[Line], root: Path) -> None:
    text = "\n".join(table_section(gather_table(plan, KnownLines(lines), root), root))
    assert rows(text, "FedMF†") and not rows(text, "FedMF")


def verdicts_of(plan: Plan, answer: Answer, root: Path, partitions: int) -> str:
    wide = plan.model_copy(update={"partitions": tuple(range(partitions))})
    lines = [answer(cell) for cell in plan_cells(wide)]
    return "\n".join(table_section(gather_table(wide, KnownLines(lines), root), root)).split("the others, Recall@20")[1]


def test_verdicts_are_over_units_of_partition_and_client(plan: Plan, answer: Answer, root: Path) -> None:
    text = verdicts_of(plan, answer, root, partitions=4)
    # 4 partitions of 2 clients; against FedMF, popularity, untrained, local and centralised: 5 * 2 / 2^8
    assert text.startswith(": 8 units, 5 rows compared; no p can be below .039 after Holm.")
    recall = rows(text, "FedMF†")[0]
    assert recall[1:4] == ["8", ".1000", ".1000 to .1000"]
    # LPSFed over its seeds: .43 and .45, against .1 and .2
    assert rows(text, "popularity")[0][1:3] == ["8", ".2900"]


def test_seeds_make_no_more_units(plan: Plan, answer: Answer, root: Path) -> None:
    text = verdicts_of(plan, answer, root, partitions=1)  # 3 seeds
    assert text.startswith(": 2 units, fewer than the 6 that a test needs.")
    assert rows(text, "FedMF†")[0][1:] == ["2", ".1000", "-", "-", "-", "-", "too few pairs"]
    assert "| ahead |" not in text and "| behind |" not in text


def test_costs_are_of_runs_made_alone_with_a_cache_of_their_own(plan: Plan, lines: list[Line], root: Path) -> None:
    shown = plan.model_copy(update={"view": "cost"})
    assert rows("\n".join(table_section(gather_table(shown, KnownLines(lines), root), root)), "LPSFed")
    for change in ({"jobs": 2}, {"jobs": None}, {"cache": "shared"}):
        spoilt = [{key: value for key, value in (line | change).items() if value is not None} for line in lines]
        text = "\n".join(table_section(gather_table(shown, KnownLines(spoilt), root), root))
        assert "1 of 13 cells measured." in text and not rows(text, "LPSFed"), change  # the floors cost nothing
    quality = "\n".join(table_section(gather_table(plan, KnownLines(spoilt), root), root))
    assert "13 of 13 cells measured." in quality


def test_nothing_measured_is_said_and_not_filled_in(root: Path, tmp_path: Path) -> None:
    path = write_document(tmp_path / "docs", root)
    text = path.read_text(encoding="utf-8")
    assert "0 of 13 cells measured." in text and "Measured: nothing yet." in text
    assert rows(text, "LPSFed") == [] and not (tmp_path / "docs" / "figures" / "table0.svg").exists()


def test_the_document_is_written_again_the_same_with_its_picture(lines: list[Line], root: Path, tmp_path: Path) -> None:
    for line in lines:
        append_line(root / "table0" / "results.jsonl", line)
    path = write_document(tmp_path / "docs", root)
    picture = tmp_path / "docs" / "figures" / "table0.svg"
    first = path.read_bytes(), picture.read_bytes()
    assert b"![A table](figures/table0.svg)" in first[0] and b"<svg" in first[1]
    write_document(tmp_path / "docs", root)
    assert (path.read_bytes(), picture.read_bytes()) == first


@pytest.mark.parametrize("view", ["structure", "cost", "sweep"])
def test_each_view_adds_its_own_table(plan: Plan, lines: list[Line], root: Path, view: str) -> None:
    rows_of = tuple(
        row.model_copy(update={"sweep": "gamma", "value": 0.5} if row.label == "LPSFed" else {}) for row in plan.methods
    )
    shown = plan.model_copy(update={"view": view, "methods": rows_of})
    text = "\n".join(table_section(gather_table(shown, KnownLines(lines), root), root))
    expected = {
        "structure": ["large: 0 clients, medium: 1 clients, small: 1 clients", "LPSFed"],
        "cost": ["2.00", "2.0 of 3", "512", "800", "1,000"],
        "sweep": ["0.5", ".4400", ".2200"],
    }[view]
    assert all(part in text for part in expected), text


def test_groups_of_users_and_items(plan: Plan, lines: list[Line], root: Path) -> None:
    for line in lines:
        for clients in line["floors"].values() if "floors" in line else [line["clients"]]:
            for one in clients or []:
                of_clients = {
                    "client-1": {"tail": [0.1, 0.2, 5]},
                    "client-2": {"tail": [0.1, 0.4, 15], "mid": [0.1, 0.3, 4]},
                }
                one["groups"] = dict.fromkeys(("users", "items"), of_clients[one["client"]] | {"head": [0.0, 0.0, 0]})
    shown = plan.model_copy(update={"view": "activity", "groups": True})
    text = "\n".join(table_section(gather_table(shown, KnownLines(lines), root), root))
    assert ["LPSFed", ".3000 / .3500", "-", ".3000 / .3000", "-", "-", "-"] in rows(text, "LPSFed")
    assert ["LPSFed", ".3000 / .3500", ".3000 / .3000", "-"] in rows(text, "LPSFed")


def test_a_client_without_test_users_counts_in_no_mean_and_few_are_marked(
    plan: Plan, lines: list[Line], root: Path
) -> None:
    for line in lines:
        for clients in line["floors"].values() if "floors" in line else [line["clients"]]:
            for one in (one for one in clients or [] if one["client"] == "client-2"):
                one |= {"recall": 0.0, "ndcg": 0.0, "test_users": 0}
    text = "\n".join(table_section(gather_table(plan, KnownLines(lines), root), root))
    assert rows(text, "LPSFed")[0][3:8] == [".4300 ± .0100", ".4300", ".1234", "4.300 / 4.300", "2.688 / 2.688"]
    assert rows(text, "LPSFed")[-1] == ["LPSFed", ".4300 / .2150", "-"] and "client-1 ‡" in text


def test_a_good_quick_run_has_no_complaints(plan: Plan, lines: list[Line], root: Path) -> None:
    assert table_complaints(gather_table(plan, KnownLines(lines), root), root) == []


def spoiled(lines: list[Line], strategy: str, key: str, value: float) -> list[Line]:
    wrong = [line for line in lines if line["strategy"] == strategy]
    for line in wrong:
        line["clients"][0][key] = value
    return lines


def test_each_check_can_fail(plan: Plan, lines: list[Line], root: Path) -> None:
    def said(found: list[Line]) -> str:
        return "\n".join(table_complaints(gather_table(plan, KnownLines(found), root), root))

    assert "expected 13 cells, measured 12" in said(lines[:-1])
    assert "the row 'local'" in said([line for line in lines if line["strategy"] != "local"])
    assert "nothing but empty containers" in said(spoiled(lines, "local", "bytes_up", 4000))
    assert "every client to send" in said(spoiled(lines, "lpsfed", "bytes_up", 0))
    assert "figures from 0 to 1" in said(spoiled(lines, "fedavg", "recall", 1.5))
    assert "figures from 0 to 1" in said(spoiled(lines, "fedavg", "recall", float("nan")))
    assert "above popularity" in said(spoiled(lines, "lpsfed", "ndcg", -0.9))


def test_a_row_is_missed_in_the_columns_alone_that_have_it(plan: Plan, answer: Answer, root: Path) -> None:
    second = plan.blocks[0].model_copy(update={"name": "b", "rows": ("LPSFed", "local", "centralised")})
    both = plan.model_copy(update={"blocks": (*plan.blocks, second)})
    found = [answer(cell) for cell in plan_cells(both)]
    assert table_complaints(gather_table(both, KnownLines(found), root), root) == []


def test_numbers_are_short() -> None:
    assert [format_number(value) for value in (0.12345, -0.001, 1.0, 0.0, None, float("nan"))] == [
        ".1235" if f"{0.12345:.4f}" == "0.1235" else ".1234",
        "-.0010",
        "1.0000",
        ".0000",
        "-",
        "-",
    ]
