"""Claims of paper.toml -> what was found, and a verdict that nobody typed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.cells import Cell, plan_cells
from benchmarks.harness.claims import (
    AGAINST,
    FAILS,
    HOLDS,
    SO_FAR,
    TOO_FEW,
    UNPROVEN,
    UNSEEN,
    claims_section,
    judge_claim,
    judge_claims,
    verdict_of,
)
from benchmarks.harness.plan import (
    CENTRALISED,
    FLOORS,
    UNTRAINED,
    Claim,
    Plan,
    is_own_table,
    read_paper,
    read_plan,
    table_names,
)
from benchmarks.harness.statistics import Comparison, Verdict
from benchmarks.harness.store import KnownLines, Line
from benchmarks.harness.summary import Column, summarise_plan
from benchmarks.table7 import run as table7
from benchmarks.table10 import run as table10
from benchmarks.table11 import run as table11
from benchmarks.theorems import run as theorems
from shared.errors import SettingsError

Answer = Callable[[Cell], Line]


def column_of(plan: Plan, answer: Answer, partitions: int = 4) -> Column:
    """Units: partitions x 2 clients."""
    wide = plan.model_copy(update={"partitions": tuple(range(partitions))})
    return summarise_plan(wide, plan_cells(wide), KnownLines([answer(cell) for cell in plan_cells(wide)]))[0]


def claim(*over: str, **more: Any) -> Claim:
    return Claim(says="LPSFed is ahead", over=over, **more)


def test_ahead_of_every_row_holds(plan: Plan, answer: Answer) -> None:
    found, verdict = judge_claim(claim("FedMF", "local"), column_of(plan, answer))
    assert verdict == HOLDS
    # ndcg is half of recall: .4 against .3 and .35
    assert found == "ahead: FedMF +.0500 [.0500, .0500], local +.0250 [.0250, .0250]; 8 units; 12 runs"


def test_the_worst_comparison_decides(plan: Plan, answer: Answer) -> None:
    column = column_of(plan, answer)
    column.rows["the same"] = column.rows["LPSFed"]
    assert judge_claim(claim("FedMF", "the same", CENTRALISED), column)[1] == FAILS
    assert judge_claim(claim("FedMF", "the same"), column)[1] == UNSEEN
    assert judge_claim(claim("FedMF"), column_of(plan, answer, partitions=2))[1] == TOO_FEW


def test_each_row_has_to_show_it_by_itself(plan: Plan, answer: Answer) -> None:
    # 6 units of one sign: p = .031 each, .062 after Holm over two
    assert judge_claim(claim("FedMF", "local"), column_of(plan, answer, partitions=3))[1] == HOLDS


def comparison(verdict: Verdict) -> Comparison:
    return Comparison(8, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, verdict)


@pytest.mark.parametrize(
    ("verdicts", "whole", "said"),
    [
        (["ahead", "ahead"], True, HOLDS),
        (["ahead", "ahead"], False, SO_FAR),
        (["ahead", "ahead, unproven"], True, UNPROVEN),
        (["ahead", "no difference seen", "too few pairs"], True, UNSEEN),
        (["ahead", "too few pairs"], True, TOO_FEW),
        (["behind, unproven", "no difference seen"], True, AGAINST),
        (["behind, unproven", "behind"], False, FAILS),
    ],
)
def test_verdicts(verdicts: list[Verdict], whole: bool, said: str) -> None:
    assert verdict_of(map(comparison, verdicts), whole=whole) == said


def test_floors_stand_for_all_of_them_and_the_start_for_none(plan: Plan, answer: Answer) -> None:
    found, verdict = judge_claim(claim(FLOORS), column_of(plan, answer))
    assert verdict == HOLDS and "popularity" in found and UNTRAINED not in found


def test_rows_that_are_not_measured_are_named(plan: Plan, answer: Answer) -> None:
    found, verdict = judge_claim(claim("FedMF", "FedRAP"), column_of(plan, answer))
    assert verdict == SO_FAR and found.endswith("; not measured: FedRAP; 8 units; 12 runs")
    assert judge_claim(claim("FedRAP"), column_of(plan, answer)) == ("", "")
    assert judge_claim(claim("FedMF", row="FedRAP"), column_of(plan, answer)) == ("", "")


@pytest.mark.parametrize(("least", "verdict"), [(2.93, HOLDS), (2.94, FAILS)])
def test_a_ratio_to_the_best_floor_is_held_against_what_is_asked(
    plan: Plan, answer: Answer, least: float, verdict: str
) -> None:
    # LPSFed .44 and half of it, popularity .15 and half of it; with 10 and 20 test users .4433 and .1667
    told = "Recall@20 2.9333 x (user mean 2.6600 x), NDCG@20 2.9333 x (user mean 2.6600 x); 4 partitions, 12 runs"
    assert judge_claim(claim(FLOORS, least=least), column_of(plan, answer)) == (told, verdict)


def test_a_group_of_clients_or_of_users(plan: Plan, answer: Answer) -> None:
    column = column_of(plan, answer, partitions=6)
    for samples in column.rows.values():
        for sample in samples:
            for one in sample.clients:
                asked = 5 if one["client"] == "client-1" else 0
                one["groups"] = {"users": {"tail": [0.0, one["ndcg"] / 2, asked]}}
    assert (
        judge_claim(claim("FedMF", part="users/tail"), column)[0]
        == "ahead: FedMF +.0250 [.0250, .0250]; 6 units; 18 runs"
    )
    assert judge_claim(claim("FedMF", part="medium"), column)[0].endswith("6 units; 18 runs")
    assert judge_claim(claim("FedMF", part="large"), column) == ("", "")  # of two clients none is large


def test_what_is_not_measured_stands_last(plan: Plan, answer: Answer) -> None:
    column = column_of(plan, answer)
    empty = Column("users: ml-1m", "ml-1m")
    claims = [claim("FedMF"), Claim(says="Another", over=("FedRAP",))]
    text = "\n".join(claims_section(judge_claims("table0", claims, [column, empty])))
    assert "| LPSFed is ahead | [table0](#table0) | synthetic-400x240 | ahead: FedMF" in text
    assert "- table0 (synthetic-400x240): Another" in text
    assert "- table0 (users: ml-1m): every claim" in text
    assert "Not measured" not in "\n".join(claims_section(judge_claims("table0", claims[:1], [column])))


def test_a_ratio_is_to_floors_alone_and_a_part_is_known() -> None:
    with pytest.raises(ValueError, match="floors"):
        claim("local", least=1.03)
    with pytest.raises(ValueError, match="part"):
        claim("local", part="users/few")


@pytest.mark.parametrize("name", [name for name in table_names() if not is_own_table(name)])
def test_claims_name_rows_of_their_table(name: str) -> None:
    plan = read_plan(name)
    rows = {row.label for row in plan.rows()} | {UNTRAINED, FLOORS}
    for one in read_paper(name).claims:
        assert {one.row, *one.over} <= rows, one.says
        assert plan.groups or "/" not in one.part, one.says


def test_a_claim_that_is_misspelt_is_refused(root: Path) -> None:
    path = root / "table0" / "paper.toml"
    path.write_text('source = "x"\n\n[[claims]]\nsays = "y"\nabove = ["local"]\n', encoding="utf-8")
    with pytest.raises(SettingsError, match=r"claims.*above"):
        read_paper("table0", root)


@pytest.mark.parametrize(("end", "verdict"), [(0.20, HOLDS), (0.29, UNSEEN), (0.40, FAILS)])
def test_a_margin_must_move_users_apart_by_more_than_seeds_do(end: float, verdict: str) -> None:
    ends = {("gamma 0.0", 0): 0.30, ("gamma 0.0", 1): 0.32, ("gamma 1.0", 0): end, ("gamma 1.0", 1): end}
    rows = [
        {"data": "ml-1m", "recommender": name, "seed": seed, "iteration": 2, "jaccard": value}
        for (name, seed), value in ends.items()
    ]
    assert table10.claims([*rows, {**rows[0], "recommender": "random"}])[0][3] == verdict


@pytest.mark.parametrize(("r", "p", "verdict"), [(0.8, 0.01, HOLDS), (0.8, 0.2, UNSEEN), (-0.8, 0.01, FAILS)])
def test_a_correlation_must_be_proven(r: float, p: float, verdict: str) -> None:
    row = {"part": "correlation", "client": table11.MEAN, "data": "ml-1m", "all": {"r": r, "p": p, "pairs": 8}}
    assert table11.claims([row])[0][3] == verdict
    assert table11.claims([row | {"all": None}]) == []


def test_a_rate_must_be_reached_at_every_cut_off_and_a_bound_hold_on_every_graph() -> None:
    rates = [
        {"part": "rate", "regime": regime, "cutoff": cutoff, "error_slope": slope}
        for regime, cutoff, slope in (
            ("dense", 10, -0.6),
            ("dense", 32, -0.5),
            ("sparse", 10, -0.6),
            ("sparse", 32, 0.1),
        )
    ]
    side = {"part": "smoothness", "held": True, "bound": 1.0, "trivial": 2.0}
    assert [one[3] for one in theorems.claims([*rates, side])] == [HOLDS, FAILS, HOLDS]
    assert theorems.claims([*rates, side | {"bound": 8.0}])[-1][3] == f"{HOLDS}, and says nothing"
    broken = theorems.claims([*rates, side, side | {"held": False}])[-1]
    assert broken[3] == FAILS and broken[2].startswith("the bound breaks")


@pytest.mark.parametrize(("spectral", "verdict"), [(9.0, HOLDS), (7.0, FAILS)])
def test_spectral_parts_are_held_against_the_paper_s_other_ways(spectral: float, verdict: str) -> None:
    variances = {"spectral": spectral, "random": 8.0, "users": 20.0}  # users: not in the paper
    rows = [{"data": "ml-1m", "method": name, "degree_variance": value} for name, value in variances.items()]
    assert table7.claims([*rows, {"method": "ego", "problem": "too small"}])[0][3] == verdict
