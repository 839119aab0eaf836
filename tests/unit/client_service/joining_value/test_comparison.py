"""What a run was worth: three lists for the same users, with intervals, by activity and by the items' frequency."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from client_service.data.interactions import Shard
from client_service.evaluation.metrics import LABELS
from client_service.evaluation.node_measures import ACCURACY, NODE_LABELS
from client_service.evaluation.ranking import measure_test
from client_service.federation.messages import EarlierRun, QualityOut
from client_service.joining_value.comparison import compare_with_local, mean_interval, paired_ratio, rank_local_lists
from client_service.joining_value.messages import ComparisonOut, FigureOut, GroupOut
from client_service.pages.charts import NAMES, comparison_chart, runs_table, worth_notices
from client_service.pages.routes import TEMPLATE
from client_service.runtime.interruption import Interrupt, Interrupted
from client_service.training.filter_search import best_ease, popularity_top
from simulation.experiments.floors import floor_tops

MEASURES = tuple(LABELS.values())


@dataclass(frozen=True)
class Lists:
    """Whatever answers with lists."""

    top: Any


@dataclass(frozen=True)
class Answers:
    """A served model, as far as it is compared."""

    ranker: Lists


def compared(folder: Path, shard: Shard, top: Any) -> ComparisonOut:
    return compare_with_local(shard, Answers(Lists(top)), 12, folder)  # type: ignore[arg-type]


def test_all_three_are_judged_on_the_same_users_and_the_gain_is_the_difference(tmp_path: Path, planted: Shard) -> None:
    found = compared(tmp_path, planted, popularity_top(planted))
    whole = found.groups[0]
    assert (whole.name, whole.users, found.users, found.few, found.measure) == ("all users", 40, 40, True, "ndcg@20")
    assert whole.federated == whole.popularity
    assert whole.popularity.mean == pytest.approx(measure_test(planted, popularity_top(planted)).primary_value)
    assert whole.alone.mean == pytest.approx(
        measure_test(planted, rank_local_lists(planted, 12, tmp_path)).primary_value
    )
    assert whole.gain.mean == pytest.approx(whole.federated.mean - whole.alone.mean)
    assert whole.ratio is not None and whole.ratio.high < 1
    assert whole.ratio.mean == pytest.approx(whole.federated.mean / whole.alone.mean)
    assert whole.gain.low < whole.gain.mean < whole.gain.high < 0
    assert found.validation_gain is not None and found.validation_gain.mean < 0
    assert compared(tmp_path, planted, rank_local_lists(planted, 12, tmp_path)).groups[0].gain == FigureOut(
        mean=0, low=0, high=0
    )


def test_the_other_floors_are_those_of_a_report_and_stand_between(tmp_path: Path, planted: Shard) -> None:
    found = compared(tmp_path, planted, popularity_top(planted))
    tops = floor_tops(planted, 12, None)
    floors = found.groups[0].floors
    assert list(floors) == ["lowpass", "ridge", "ease"] and found.left_out == ()
    for name, figure in floors.items():
        top = tops[name]
        assert top is not None and figure.mean == pytest.approx(measure_test(planted, top).primary_value)
        assert 0.0 <= figure.low <= figure.mean <= figure.high
    assert all(list(group.floors) == list(floors) for group in found.groups)
    chart = comparison_chart(QualityOut(client="a", run="run-1", comparison=found), MEASURES)
    assert chart.names == (NAMES[0], "low-pass filter", "ridge filter", "EASE", *NAMES[1:])
    assert [one.value for one in chart.bars[0][1]] == [
        found.groups[0].popularity.mean,
        *(figure.mean for figure in floors.values()),
        found.groups[0].alone.mean,
        found.groups[0].federated.mean,
    ]
    assert len({one.colour for one in chart.bars[0][1]}) == 6
    assert "need no training" in chart.description


def test_a_floor_that_is_too_dear_is_left_out_and_the_page_says_so(
    tmp_path: Path, planted: Shard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("client_service.joining_value.comparison.EASE_SIDE", min(planted.train.shape) - 1)
    found = compared(tmp_path, planted, popularity_top(planted))
    assert list(found.groups[0].floors) == ["lowpass", "ridge"] and found.left_out == ("ease",)
    chart = comparison_chart(QualityOut(client="a", run="run-1", comparison=found), MEASURES)
    assert chart.names == (NAMES[0], "low-pass filter", "ridge filter", *NAMES[1:])
    assert "EASE is left out" in chart.description
    shown = TEMPLATE.environment.get_template("macros.html").module.intervals(chart)  # type: ignore[attr-defined]
    assert "EASE is left out" in shown and shown.count("<svg") == 5 * len(chart.bars)


def test_computing_floors_ends_when_it_is_asked_to(tmp_path: Path, planted: Shard) -> None:
    interrupt = Interrupt()
    interrupt.set()
    with pytest.raises(Interrupted):
        best_ease(planted, interrupt=interrupt)
    with pytest.raises(Interrupted):
        compare_with_local(planted, Answers(Lists(popularity_top(planted))), 12, tmp_path, interrupt)  # type: ignore[arg-type]


def test_every_held_out_item_is_in_one_class_of_frequency(tmp_path: Path, shard_of: Callable[..., Shard]) -> None:
    rng = np.random.default_rng(1)
    liked = rng.random((80, 30)) < np.linspace(0.05, 0.9, 30)
    liked[:, -1] = True
    test = np.zeros((80, 30))
    test[np.arange(80), rng.integers(0, 29, 80)] = 1.0
    shard = shard_of(liked * (1 - test), None, test)
    found = compared(tmp_path, shard, popularity_top(shard))
    by_name = {group.name: group for group in found.groups}
    assert sum(by_name[name].users for name in by_name if name.endswith("items") and "users" not in name) == 80
    assert sum(group.users for group in found.groups if group.name.startswith("users")) == 80
    assert by_name["popular items"].popularity.mean > by_name["rare items"].popularity.mean
    assert found.validation_gain is None and not found.few


def test_without_test_items_there_is_nothing_to_compare(tmp_path: Path, shard_of: Callable[..., Shard]) -> None:
    shard = shard_of(np.eye(4) + np.eye(4)[::-1])
    found = compared(tmp_path, shard, popularity_top(shard))
    assert found.groups == () and found.users == 0 and found.few


def test_an_interval_is_the_normal_one_and_of_one_user_all_that_is_possible() -> None:
    assert mean_interval(np.array([0.4]), 0.0) == FigureOut(mean=0.4, low=0.0, high=1.0)
    found = mean_interval(np.array([0.0, 1.0] * 50))
    assert found.high - found.mean == pytest.approx(1.96 * 0.5 / 10, rel=0.01)


def test_a_ratio_has_the_interval_that_drawing_users_again_gives() -> None:
    """Together with each user's other value: what is hard for both lists widens nothing."""
    rng = np.random.default_rng(3)
    alone = rng.beta(0.6, 2.0, 400)
    together = np.clip(1.2 * alone + rng.normal(0, 0.05, 400), 0, 1)
    found = paired_ratio(together, alone)
    assert found is not None and found.mean == pytest.approx(together.mean() / alone.mean())
    drawn = rng.integers(0, 400, (4000, 400))
    low, high = np.quantile(together[drawn].mean(1) / alone[drawn].mean(1), [0.025, 0.975])
    assert (found.low, found.high) == (pytest.approx(low, abs=0.004), pytest.approx(high, abs=0.004))
    apart = paired_ratio(rng.permutation(together), alone)
    assert apart is not None and apart.high - apart.low > 3 * (found.high - found.low)
    assert paired_ratio(alone, np.zeros(400)) is None and paired_ratio(np.zeros(400), alone) is None
    assert paired_ratio(alone[:1], alone[:1]) is None


GAIN = FigureOut(mean=-0.02, low=-0.03, high=-0.01)
SOME = FigureOut(mean=0.3, low=0.2, high=0.4)
GROUP = GroupOut(name="all users", users=60, popularity=SOME, alone=SOME, federated=SOME, gain=GAIN)
FOUND = ComparisonOut(measure="ndcg@20", users=60, few=False, groups=(GROUP,), validation_gain=GAIN)


def test_the_page_says_in_plain_words_that_what_is_served_is_worse_than_alone() -> None:
    [said] = worth_notices(FOUND)
    assert "worse than this silo alone, by 0.0200" in said and "chance" not in said
    perhaps = FOUND.model_copy(
        update={"validation_gain": GAIN.model_copy(update={"high": 0.01}), "few": True, "users": 9}
    )
    few, unsure = worth_notices(perhaps)
    assert few.startswith("Only 9 users") and "which may be chance" in unsure
    assert worth_notices(FOUND.model_copy(update={"validation_gain": SOME})) == ()


def test_the_first_chart_has_a_bar_from_zero_for_each_figure() -> None:
    chart = comparison_chart(QualityOut(client="a", run="run-2", comparison=FOUND), MEASURES)
    assert "NDCG@20 of run-2 on test items" in chart.description and "None of these figures leaves" in chart.description
    of_nodes = QualityOut(client="a", run="run-2", comparison=FOUND.model_copy(update={"measure": ACCURACY}))
    assert comparison_chart(of_nodes, tuple(NODE_LABELS.values())).description.startswith("Accuracy of run-2 on test")
    [(group, bars)] = chart.bars
    assert group.note == "60 users" and [one.name for one in bars] == list(chart.names)
    assert all(0 < one.left < one.width < one.right <= 100 for one in bars)
    assert chart.end == 0.4 and chart.ticks == ("0", "0.2", "0.4") and bars[0].width == 75.0
    assert comparison_chart(QualityOut(client="a"), MEASURES).groups == ()


def test_the_page_holds_alone_every_earlier_run_and_the_last_one_beside_one_another() -> None:
    strict, common = ({"recall@20": recall, "ndcg@20": ndcg} for recall, ndcg in ((0.3, 0.2), (0.4, 0.25)))
    earlier = (EarlierRun(run="run-1", test=strict, test_users=7),)
    ended = QualityOut(client="a", run="run-3", comparison=FOUND, test=common, test_users=7, earlier=earlier)
    table = runs_table(ended, tuple(LABELS.values()))
    assert table is not None and set(table.titles) == {"Recall@20", "NDCG@20"}
    at = table.titles.index("NDCG@20")
    alone = f"{FOUND.groups[0].alone.mean:.4f}"
    assert [(who, figures[at]) for who, figures, _ in table.rows] == [
        ("this silo alone", alone),
        ("run-1", "0.2000"),
        ("run-3, the latest", "0.2500"),
    ]
    shown = TEMPLATE.environment.get_template("parts.html").module.runs(table)  # type: ignore[attr-defined]
    assert re.findall(r'<th scope="row">(.*?)</th>', shown) == ["this silo alone", "run-1", "run-3, the latest"]
    assert runs_table(ended.model_copy(update={"earlier": ()}), tuple(LABELS.values())) is None
    going_on = ended.model_copy(update={"test": None, "comparison": None})
    assert runs_table(going_on, tuple(LABELS.values())) is not None
