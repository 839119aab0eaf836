"""Both means of a report, from clients of very different size; what has no test user is in none of them."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from simulation.reports.averages import client_mean, mark_few_users, quantile_figures, user_mean
from simulation.reports.plots import markdown_table
from simulation.reports.report import best_floor, floor_means
from simulation.reports.tables import quality_table

KEYS = ("recall@20", "ndcg@20")


def figures(value: float | None) -> dict[str, float | None]:
    return {"recall@20": value, "ndcg@20": None if value is None else value / 2}


def test_a_client_counts_once_in_the_one_and_by_its_test_users_in_the_other() -> None:
    rows, users = [figures(0.2), figures(0.6)], [30, 10]
    assert client_mean(KEYS, rows, users) == {"recall@20": pytest.approx(0.4), "ndcg@20": pytest.approx(0.2)}
    assert user_mean(KEYS, rows, users) == {"recall@20": pytest.approx(0.3), "ndcg@20": pytest.approx(0.15)}


@pytest.mark.parametrize("nothing", [None, 0.0])
def test_a_client_without_test_users_changes_no_mean(nothing: float | None) -> None:
    rows, users = [figures(0.2), figures(nothing), figures(0.6)], [30, 0, 10]
    assert client_mean(KEYS, rows, users)["recall@20"] == pytest.approx(0.4)
    assert user_mean(KEYS, rows, users)["recall@20"] == pytest.approx(0.3)


def test_of_nobody_there_is_no_mean() -> None:
    assert client_mean(KEYS, [figures(0.0)], [0]) == user_mean(KEYS, [], []) == dict.fromkeys(KEYS)


def both(clients: float, users: float) -> dict[str, Any]:
    return {**figures(clients), "client_mean": figures(clients), "user_mean": figures(users)}


@pytest.fixture
def report() -> dict[str, Any]:
    """A model that is ahead at the client mean, thanks to one test user, and behind at the user mean."""
    clients = [
        {"client": "client-1", **figures(0.2), "test_users": 900, "few_test_users": False},
        {"client": "client-2", **figures(1.0), "test_users": 1, "few_test_users": True},
        {"client": "client-3", **figures(None), "test_users": 0, "few_test_users": True},
    ]
    by_client = {"client-1": figures(0.3), "client-2": figures(0.1), "client-3": figures(None)}
    return {
        "strategy": "lpsfed",
        "clients": clients,
        "client_mean": figures(0.6),
        "user_mean": figures(0.201),
        "alone": figures(0.25),
        "together": figures(0.201),
        "centralised": figures(0.4),
        "floors": {"lowpass": both(0.2, 0.2998), "ease": None},
        "untrained": both(0.5, 0.25),
        "floors_by_client": {name: {"lowpass": row, "ease": None} for name, row in by_client.items()},
        "notes": ["client-3: No test items: it has no figures and counts in no mean."],
    }


def printed(report: dict[str, Any]) -> str:
    console = Console(width=100)
    with console.capture() as captured:
        console.print(quality_table(report))
    return captured.get()


def test_a_table_has_both_means_of_floors_and_model_and_marks_what_is_mostly_chance(report: dict[str, Any]) -> None:
    text = printed(report)
    lines = {" ".join(line.split()[:2]): line.split()[2:] for line in text.splitlines() if line.strip()}
    assert lines["client mean"] == [".2000/.1000", "-", ".6000/.3000"]
    assert lines["user mean"] == [".2998/.1499", "-", ".2010/.1005"]
    assert "client-2 ‡" in text and "client-1 ‡" not in text and "fewer than 50 test users" in text
    assert lines["client-3 ‡"] == ["-", "-", "-"] and "client-3: No test items" in text
    assert "alone .2500/.1250, together .2010/.1005, with all silos' data .4000/.2000" in text


def test_the_written_table_says_behind_by_the_mean_by_which_it_is(report: dict[str, Any]) -> None:
    text = markdown_table(report)
    assert "| lowpass | 0.3000 / 0.1500 | 0.1000 / 0.0500 | - | 0.2000 / 0.1000 | 0.2998 / 0.1499 |" in text
    assert "| closed form on all data | - | - | - | - | 0.4000 / 0.2000 |" in text
    assert "recall@20, client mean: 0.6000, ahead of the best floor (lowpass, 0.2000)." in text
    assert "recall@20, user mean: 0.2010, **behind** the best floor (lowpass, 0.2998)." in text
    assert "client-2 ‡" in text and "client-3: No test items" in text


def test_a_report_of_an_earlier_version_shows_the_means_that_it_has(report: dict[str, Any]) -> None:
    earlier = {name: report[name] for name in ("strategy", "client_mean", "user_mean", "floors_by_client")}
    earlier["clients"] = [{"client": one["client"], **figures(0.5)} for one in report["clients"]]
    earlier |= {"floors": {"lowpass": figures(0.2), "ease": None}, "untrained": figures(0.5)}
    assert floor_means(earlier["floors"]["lowpass"], "user_mean") is None
    assert (
        best_floor(earlier, "recall@20") == ("lowpass", 0.2) and best_floor(earlier, "recall@20", "user_mean") is None
    )
    assert "user mean" in printed(earlier) and ".2000/.1000" in printed(earlier)
    assert "| lowpass | 0.3000 / 0.1500 | 0.1000 / 0.0500 | - | 0.2000 / 0.1000 | - |" in markdown_table(earlier)


def test_a_client_is_marked_where_the_report_says_so() -> None:
    assert mark_few_users({"client": "a", "few_test_users": True}) == "a ‡"
    assert mark_few_users({"client": "a"}) == mark_few_users({"client": "a", "few_test_users": False}) == "a"


def test_a_report_of_a_thousand_silos_has_quantiles_and_names_who_loses_most(report: dict[str, Any]) -> None:
    names = [f"client-{number:04d}" for number in range(1, 1025)]
    one = {"test_users": 20, "few_test_users": True}
    report["clients"] = [{"client": name, **figures(0.2 + number / 2048), **one} for number, name in enumerate(names)]
    report["floors_by_client"] = {name: {"lowpass": figures(0.25), "ease": None} for name in names}
    ratios = [0.5 if name == "client-0007" else 0.9 if name == "client-0100" else 1.1 for name in names]
    report["silos"] = [{"client": name, "users": 20, "ratio": ratio} for name, ratio in zip(names, ratios, strict=True)]
    report["notes"] = [f"{name}: a warning" for name in names]
    for text in (" ".join(printed(report).split()), markdown_table(report)):
        assert "Worse than alone: 2 of 1,024 silos, 0 beyond chance" in text
        assert "client-0007 x 0.500 (20 test users), client-0100 x 0.900" in text
        assert "1,016 more notes in report.json" in text
        assert "client-0500" not in text and len(text) < 4000
    assert len(markdown_table(report).splitlines()[0].split("|")) == 1 + 1 + 6 + 2 + 1
    assert " ".join(printed(report).split()).count("median .2500/.1250 - .4498/.2249") == 1


def test_quantiles_lie_between_values_and_leave_out_who_has_none() -> None:
    found = quantile_figures(["a", "b"], [{"a": 1.0}, {"a": 2.0}, None, {"a": 4.0, "b": None}])
    assert [found[name]["a"] for name in ("least", "quarter", "median", "most")] == [1.0, 1.5, 2.0, 4.0]
    assert found["median"]["b"] is None
