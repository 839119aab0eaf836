"""config.toml -> a plan and its cells; what cannot be measured says why and stands in nobody's way."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.harness.cells import plan_cells, settings_hash
from benchmarks.harness.plan import ROOT, is_own_table, read_paper, read_plan, special_functions, table_names
from shared.errors import SettingsError

OWN = ("table1", "table2", "table3", "table4", "figure3", "table8", "table9", "table12")
CONFIG = """
title = "A table"
source = "Table 0"
seeds = [0, 1]
partitions = [0]
rounds = 3

[[blocks]]
name = "four"
data = ["ml-1m", "gowalla"]

[[methods]]
label = "LPSFed"
strategy = "lpsfed"

[[methods]]
label = "ER"
strategy = "lpsfed"
method = { "anchor.graph" = "er", width = 32 }

[[methods]]
label = "Unheard of"
strategy = "nobody"

[[methods]]
label = "Unset"
strategy = "lpsfed"
method = { no_such = 1 }

[quick]
methods = ["LPSFed"]
"""


def written(root: Path, text: str = CONFIG, name: str = "table0") -> Path:
    (root / name).mkdir()
    (root / name / "config.toml").write_text(text, encoding="utf-8")
    return root


def test_a_plan_has_a_cell_for_each_column_partition_seed_and_row(tmp_path: Path) -> None:
    plan = read_plan("table0", root=written(tmp_path))
    assert plan.column_names() == ["four: ml-1m", "four: gowalla"]
    assert [row.label for row in plan.rows()] == ["LPSFed", "ER", "Unheard of", "Unset", "local", "centralised"]
    found = plan_cells(plan)
    assert len(found) == 2 * (1 + 2 * 6)  # the floors have no seed
    assert [cell.row.label for cell in found[:3]] == ["floors", "LPSFed", "ER"]
    er = found[2]
    assert er.method is not None and (er.method.anchor.graph, er.method.width, er.rounds) == ("er", 32, 3)
    assert er.outcome_settings()["anchor.graph"] == "er"


def test_an_unknown_strategy_or_setting_is_that_row_s_problem_alone(tmp_path: Path) -> None:
    found = plan_cells(read_plan("table0", root=written(tmp_path)))
    problems = {cell.row.label: cell.problem for cell in found}
    assert "'nobody'" in problems["Unheard of"] and "no_such" in problems["Unset"]
    assert {label for label, problem in problems.items() if problem} == {"Unheard of", "Unset"}


def test_the_quick_section_stands_in_for_the_rest(tmp_path: Path) -> None:
    plan = read_plan("table0", quick=True, root=written(tmp_path))
    assert (plan.seeds, plan.partitions, plan.rounds, plan.column_names()) == ((0,), (0,), 2, ["synthetic-400x240"])
    assert [row.label for row in plan.rows()] == ["LPSFed", "local", "centralised"]
    assert all(row.method["width"] == 8 for row in plan.rows())


def test_rows_may_come_from_another_table(tmp_path: Path) -> None:
    root = written(written(tmp_path), 'title="B"\nsource="T"\nlike="table0"\n[[blocks]]\ndata=["x"]\n', "table1")
    assert [row.label for row in read_plan("table1", root=root).methods] == ["LPSFed", "ER", "Unheard of", "Unset"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("rounds = 3", "rounds = 0"), "rounds"),
        (("rounds = 3", "laps = 3"), "laps"),
        (('name = "four"', 'cut = "salami"'), "expected one of spectral"),
        (('label = "ER"', 'label = "LPSFed"'), "expected each label once"),
        (('methods = ["LPSFed"]', 'methods = ["None such"]'), "None such"),
        (("rounds = 3", "rounds ="), "readable TOML"),
    ],
)
def test_a_wrong_config_is_named_with_its_field(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    root = written(tmp_path, CONFIG.replace(*change))
    with pytest.raises(SettingsError, match=f"config.toml.*{said}"):
        read_plan("table0", quick="None such" in said, root=root)


def test_an_unknown_table_is_refused_with_the_list(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="expected one of table0, got 'table9'"):
        read_plan("table9", root=written(tmp_path))


def test_tables_are_ordered_by_number(tmp_path: Path) -> None:
    for name in ("table10", "figure3", "table2"):
        written(tmp_path, name=name)
    assert table_names(tmp_path) == ("figure3", "table2", "table10")


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("quick", [False, True])
def test_every_table_of_the_project_can_be_read(name: str, *, quick: bool) -> None:
    plan = read_plan(name, quick=quick)
    assert plan.reference in {row.label for row in plan.rows()}
    assert {"local", "centralised"} <= {row.label for row in plan.rows()} and (ROOT / name / "README.md").is_file()
    assert not quick or all(data.startswith("synthetic") for block in plan.blocks for data in block.data)
    assert not quick or [cell.problem for cell in plan_cells(plan) if cell.problem] == []


@pytest.mark.parametrize("name", OWN)
def test_the_paper_s_figures_are_of_rows_that_the_table_has(name: str) -> None:
    plan, paper = read_plan(name), read_paper(name)
    labels = {row.label for row in plan.rows()}
    columns = {column for column in paper.columns if "tmall" not in column}
    assert columns <= set(plan.column_names())
    assert {label for rows in paper.columns.values() for label in rows} <= labels


def test_the_paper_s_headline_is_as_printed() -> None:
    assert read_paper("table1").columns["spectral: gowalla"]["LPSFed"] == {"recall": 0.1621, "ndcg": 0.0909}
    assert read_paper("table2").columns["amazon-book-kgat"]["LPSFed"]["small"] == [0.0331, 0.0146]


def test_table_2_s_overall_column_is_the_mean_of_1_large_4_medium_and_10_small_clients() -> None:
    for row in read_paper("table2").columns["amazon-book-kgat"].values():
        mean = (row["large"][0] + 4 * row["medium"][0] + 10 * row["small"][0]) / 15
        assert row["recall"] == pytest.approx(mean, abs=2e-4)


def test_a_folder_without_blocks_belongs_to_its_run_py(tmp_path: Path) -> None:
    written(tmp_path, 'title = "alone"\n')
    assert is_own_table("table0", tmp_path)


def test_the_hash_is_of_the_settings_and_not_of_their_order() -> None:
    assert settings_hash({"a": 1, "b": 2}) == settings_hash({"b": 2, "a": 1}) != settings_hash({"a": 1, "b": 3})


def test_a_table_s_own_code_may_have_a_dataclass_whose_fields_name_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dataclasses look up their module by name: it has to be known there while the file is run."""
    monkeypatch.delitem(sys.modules, "benchmarks.mine.run", raising=False)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "run.py").write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n\n\n"
        "@dataclass\nclass One:\n    size: int\n\n\ndef check(rows):\n    return [One(len(rows)).size]\n",
        encoding="utf-8",
    )
    assert special_functions("mine", tmp_path)["check"]([1, 2]) == [2]
    monkeypatch.delitem(sys.modules, "benchmarks.mine.run")
