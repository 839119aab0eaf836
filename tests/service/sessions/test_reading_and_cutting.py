"""Files -> sessions -> cuts, worked by hand; and rounds of many small devices."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
import torch

from client_service.data.sessions import TEST, TRAIN, VALID
from client_service.training.session_trainer import SessionTrainer
from client_service.training.training_state import RoundContext
from shared.errors import DataError, SettingsError
from shared.method.settings import method_settings
from simulation.experiments.devices import DevicePlan, StatefulSilos, StatelessDevices, loss_of, train_devices
from simulation.sessions.cut import CUTS, cut_sessions, divide_sessions, jaccard_distance
from simulation.sessions.generator import generate_sessions
from simulation.sessions.read import read_session_file, read_session_folder, read_sessions
from simulation.sessions.sessions import SessionRules, Sessions, keep_supported, keep_trained_clients, parse_rules

CPU = torch.device("cpu")
DATA = Path(os.environ.get("LPSFED_TEST_DATA", Path(__file__).parents[4] / "shared" / "data"))


def write_folder(folder: Path, train: str, test: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "train_sessions.txt").write_text(train)
    with gzip.open(folder / "test.txt.gz", "wt") as file:
        file.write(test)
    return folder


def test_test_prefixes_are_the_sessions_that_they_are_of(tmp_path: Path) -> None:
    """a b c -> d, a b -> c and a -> b are one session, as published files write it, the longest first."""
    found = read_session_folder(write_folder(tmp_path / "s", "1 2\n2 3 2\n", "1 2 3\t2\n1 2\t3\n1\t2\n3\t1\n"))
    lines = [found.clicks[first:last].tolist() for first, last in zip(found.starts, found.starts[1:], strict=False)]
    assert found.items == ("1", "2", "3") and lines == [[0, 1], [1, 2, 1], [0, 1, 2, 1], [2, 0]]
    assert found.splits.tolist() == [TRAIN, TRAIN, TEST, TEST]


@pytest.mark.parametrize(
    ("train", "test", "said"),
    [
        ("", "1\t2\n", "expected data, got an empty file"),
        ("1 2\n1 nan\n", "1\t2\n", "line 2: expected an id, got NaN"),
        ("1 2\n", "1 2\n", "line 1: expected clicks, a tab"),
        ("1 2\n", "\t2\n", "line 1"),
    ],
)
def test_what_is_no_session_file_is_named_by_its_line(tmp_path: Path, train: str, test: str, said: str) -> None:
    with pytest.raises(DataError, match=said):
        read_session_folder(write_folder(tmp_path / "s", train, test))


def test_a_table_is_ordered_by_time_and_cut_at_pauses(tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    path.write_text("session,time,item\na,20,y\na,10,x\na,5000,z\na,5010,x\nb,0,z\nb,1801,y\nb,1802,x\n")
    found = read_session_file(path)
    lines = [found.clicks[first:last].tolist() for first, last in zip(found.starts, found.starts[1:], strict=False)]
    assert lines == [[2], [0, 1], [1, 0], [2, 0]]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("", "line 2: expected data after the header, got none"),
        (
            "a,1,x\na,noon,y\n",
            "line 3: expected seconds or finer since 1970, or ISO 8601 in the field 'time', got 'noon'",
        ),
        ("a,1,x\na,inf,y\n", "line 3: expected seconds or finer"),
        ("a,1,x\na,,y\n", "line 3: expected a value in the field 'time'"),
        ("a,1,x\na,2,\n", "line 3: expected a value in the field 'item'"),
        ("a,1,x\n,2,y\n", "line 3: expected a value in the field 'session'"),
        ("a,1,x\nb,2,y\n", "expected sessions of 2 to 20 clicks, 2 sessions of fewer than 2 clicks dropped"),
    ],
)
def test_clicks_that_are_none_are_named_by_their_line(tmp_path: Path, rows: str, said: str) -> None:
    path = tmp_path / "clicks.csv"
    path.write_text("session,time,item\n" + rows)
    with pytest.raises(DataError, match=said):
        read_sessions(path)


def test_a_column_of_users_and_times_in_words_will_do(tmp_path: Path) -> None:
    path, days = tmp_path / "clicks.csv.gz", [(user, day) for user in "ab" for day in (1, 2)]
    rows = [f"{user},2026-11-0{day} 10:0{minute}:00,i{minute}" for user, day in days for minute in range(3)]
    path.write_bytes(gzip.compress("\n".join(["user_id,timestamp,item_id", *rows]).encode()))
    found = read_session_file(path)
    assert found.lengths.tolist() == [3, 3, 3, 3] and found.items == ("i0", "i1", "i2") and found.name == "clicks"


def test_the_rules_say_what_a_session_is(tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    path.write_text("session,time,item\n" + "".join(f"a,{100 * n},i{n % 4}\n" for n in range(12)))
    assert len(read_session_file(path, parse_rules({"gap_seconds": "99"}))) == 12
    with pytest.raises(DataError, match="1 session of more than 5 clicks dropped"):
        read_sessions(path, parse_rules({"longest": "5"}))
    with pytest.raises(SettingsError, match=r"longest: .*expected shortest = 9 or more, got '5'"):
        parse_rules({"longest": "5", "shortest": "9"})
    with pytest.raises(SettingsError, match="pause"):
        parse_rules({"pause": "5"})


def test_each_filter_counts_what_it_drops(tmp_path: Path) -> None:
    long = " ".join(str(n % 3) for n in range(21))
    found = read_sessions(write_folder(tmp_path / "s", f"1\n{long}\n" + "1 2\n" * 18, "1\t2\n"))
    assert found.notes == ("1 session of fewer than 2 clicks dropped", "1 session of more than 20 clicks dropped")
    assert np.count_nonzero(found.splits == VALID) == 2  # a tenth of the training sessions, the last ones


def test_items_of_too_few_training_clicks_go_with_sessions_that_are_then_too_short() -> None:
    sessions = Sessions("s", np.array([0, 1, 0, 2, 0, 1]), np.array([0, 2, 4, 6]), np.zeros(3, np.int8), "abc")
    found = keep_supported(sessions, SessionRules(support=2))
    assert found.clicks.tolist() == [0, 1, 0, 1] and len(found) == 2
    assert found.notes == (
        "1 click on items with fewer than 2 training clicks dropped",
        "1 session that had then fewer than 2 clicks dropped",
    )


def test_clients_without_training_sessions_are_left_out_and_counted() -> None:
    splits = np.array([TRAIN, TEST, TRAIN, VALID], dtype=np.int8)
    sessions = Sessions("s", np.array([0, 1, 0, 2, 0, 1, 1, 0]), np.array([0, 2, 4, 6, 8]), splits, "abc")
    found, owners = keep_trained_clients(sessions, np.array([0, 1, 2, 1]), 4)
    assert owners.tolist() == [0, 1] and len(found) == 2
    assert found.notes == (
        "2 clients of 4 left out, without training sessions",
        "2 sessions of clients that are left out dropped",
    )


@pytest.mark.parametrize(("cut", "said"), [("items", "at most 1 with --method items"), ("random", "at most 24, as")])
def test_more_clients_than_can_be_are_refused(tmp_path: Path, cut: str, said: str) -> None:
    path = tmp_path / "clicks.csv"
    path.write_text("session,time,item\n" + "".join(f"s{n},{n},same\ns{n},{n + 1},same\n" for n in range(30)))
    with pytest.raises(SettingsError, match=said):
        cut_sessions(read_sessions(path), cut, 25 if cut == "random" else 2, 0)


def test_the_worked_distance_of_three_clients() -> None:
    """{a, b}, {b, c} and {d}: (2/3 + 1 + 1) / 3."""
    sessions = Sessions("s", np.array([0, 1, 1, 2, 3, 3]), np.array([0, 2, 4, 6]), np.zeros(3, np.int8), "abcd")
    assert jaccard_distance(sessions, np.array([0, 1, 2])) == pytest.approx(0.8888889, abs=1e-7)
    assert jaccard_distance(sessions, np.array([0, 0, 0])) == 0.0


@pytest.mark.parametrize("name", sorted(CUTS))
def test_a_cut_gives_every_session_to_one_client_and_is_the_same_again(name: str) -> None:
    sessions = generate_sessions(0, sessions=300, items=80)
    owners = CUTS[name](sessions, 5, 1)
    assert len(owners) == len(sessions) and set(owners.tolist()) <= set(range(5))
    assert np.array_equal(owners, CUTS[name](sessions, 5, 1))
    shards = divide_sessions(sessions, owners)
    assert sum(len(shard.clicks) for shard in shards) == len(sessions.clicks)
    assert sum(len(shard.test) for shard in shards) == len(sessions.examples(TEST))


def test_items_and_devices_part_what_chance_leaves_together() -> None:
    sessions = generate_sessions(0, sessions=600, items=200)
    distances = {name: jaccard_distance(sessions, CUTS[name](sessions, 6, 0)) for name in CUTS}
    assert min(distances["items"], distances["device"]) > distances["random"]


@pytest.fixture
def few() -> Callable[..., tuple[DevicePlan, list]]:
    sessions = generate_sessions(1, sessions=240, items=60)
    shards = divide_sessions(sessions, CUTS["device"](sessions, 8, 0))

    def plan(strategy: str, **changes: object) -> tuple[DevicePlan, list]:
        values = {"width": 8, "batch_size": 20, "learning_rate": 0.03, "catalogue": len(sessions.items), **changes}
        return DevicePlan(strategy, method_settings("sessions", **values), rounds=6, sample=3, seed=4), shards

    return plan


@pytest.mark.parametrize("strategy", ["fedavg", "fedprox", "fedadam", "fedyogi", "fedga"])
def test_devices_learn_and_draw_the_same_again(few: Callable[..., tuple[DevicePlan, list]], strategy: str) -> None:
    plan, shards = few(strategy)
    runs = [list(train_devices(plan, StatelessDevices(shards, plan.method, CPU), loss_of)) for _ in range(2)]
    assert [one.number for one in runs[0]] == [1, 2, 3, 4, 5, 6]
    assert [one.loss for one in runs[0]] == [one.loss for one in runs[1]]
    assert all(np.isfinite(value).all() for value in runs[0][-1].state.arrays.values())
    assert runs[0][-1].bytes == sum(np.asarray(value).nbytes for value in runs[0][-1].state.arrays.values())


def test_devices_report_magnitudes_where_the_server_is_told_of_them(
    few: Callable[..., tuple[DevicePlan, list]],
) -> None:
    (computed, shards), (reported, _) = few("fedga"), few("fedga", **{"server_step.magnitudes": "reported"})
    found = [
        list(train_devices(plan, StatelessDevices(shards, plan.method, CPU), loss_of)) for plan in (computed, reported)
    ]
    for name, value in found[0][-1].state.arrays.items():  # by one number of each update steps are others
        other = found[1][-1].state.arrays[name]
        assert np.isfinite(other).all() and other.shape == value.shape
    assert any((found[1][-1].state.arrays[name] != value).any() for name, value in found[0][-1].state.arrays.items())


def test_devices_learn_what_comes_next() -> None:
    sessions = generate_sessions(1, sessions=1500, items=60)
    shards = divide_sessions(*cut_sessions(sessions, "device", 20, 0))
    method = method_settings("sessions", width=16, batch_size=20, learning_rate=0.03, catalogue=60)
    rounds = list(train_devices(DevicePlan("fedavg", method, 20, 5), StatelessDevices(shards, method, CPU), loss_of))
    assert rounds[-1].loss < 0.9 * rounds[0].loss


def test_a_device_keeps_nothing_between_its_visits_and_a_silo_its_optimiser(
    few: Callable[..., tuple[DevicePlan, list]],
) -> None:
    plan, shards = few("fedavg")
    passing, lasting = StatelessDevices(shards, plan.method, CPU), StatefulSilos(shards, plan.method, CPU)
    for crew, kept in ((passing, False), (lasting, True)):
        list(train_devices(plan, crew, loss_of))
        training = crew.visit(shards[0].name, RoundContext(7, 7, 0))
        assert isinstance(training, SessionTrainer)
        assert bool(training._optimisers) is kept


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "sessions", "clicks", "items", "dropped"),
    [
        ("yoochoose1_64", [103_320, 11_403, 14_956], 505_620, 16_491, [1_625, 958, 187]),
        ("diginetica", [166_965, 18_477, 15_792], 950_243, 42_922, [1_233, 1_283, 166]),
        ("retailrocket", [111_508, 11_970, 4_534], 616_328, 36_122, [2_354, 4_292, 537]),
    ],
)
def test_the_public_files_have_their_known_sizes(
    name: str, sessions: list[int], clicks: int, items: int, dropped: list[int]
) -> None:
    if not (folder := DATA / name).is_dir():
        pytest.skip(f"{folder} is not here")
    found = read_sessions(folder)
    assert np.bincount(found.splits).tolist() == sessions
    assert (len(found.clicks), len(found.items)) == (clicks, items)
    assert [int(note.split()[0].replace(",", "")) for note in found.notes] == dropped


@pytest.mark.parametrize("form", ["milliseconds", "microseconds", "seconds", "iso"])
def test_clicks_within_one_second_keep_their_order_whatever_the_order_of_rows(tmp_path: Path, form: str) -> None:
    forms = {
        "milliseconds": lambda micros: str(micros // 1000),
        "microseconds": str,
        "seconds": lambda micros: f"{micros / 1e6:.6f}",
        "iso": lambda micros: datetime.fromtimestamp(micros / 1e6, UTC).isoformat(timespec="milliseconds"),
    }
    base = 1_700_000_000_000_000
    rows = [f"s{s},p{k},{forms[form](base + s * 4_000_000_000 + 150_000 * k)}" for s in range(20) for k in range(5)]
    np.random.default_rng(1).shuffle(rows)
    path = tmp_path / "clicks.csv"
    path.write_text("\n".join(["session,item,time", *rows]))
    found = read_session_file(path)
    assert found.clicks.tolist() == [0, 1, 2, 3, 4] * 20 and len(found) == 20


def test_equal_times_keep_the_order_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    path.write_text("session,item,time\na,z,5\na,x,5\na,y,5\na,w,4\n")
    found = read_session_file(path)
    assert [found.items[click] for click in found.clicks] == ["w", "z", "x", "y"]


def examples(found: Sessions) -> list[tuple[int, ...]]:
    whole = [tuple(found.clicks[a:b].tolist()) for a, b in zip(found.starts, found.starts[1:], strict=False)]
    return sorted(one[:end] for one in whole[1:] for end in range(2, len(one) + 1))


def test_prefixes_in_another_order_give_the_same_examples_or_an_error(tmp_path: Path) -> None:
    lines = ["1 2 3\t2", "1 2\t3", "1\t2", "1 2 3\t2", "1 2\t3", "1\t2", "1\t3", "2 1\t1", "2\t1"]
    train = "1 2 3\n"
    first = read_session_folder(write_folder(tmp_path / "s", train, "\n".join(lines) + "\n"))
    for seed in range(5):
        shuffled = [lines[place] for place in np.random.default_rng(seed).permutation(len(lines))]
        again = read_session_folder(write_folder(tmp_path / "s", train, "\n".join(shuffled) + "\n"))
        assert examples(again) == examples(first) and len(again) == len(first)
    with pytest.raises(DataError, match=r"expected a line for each shorter prefix of the session too"):
        read_session_folder(write_folder(tmp_path / "s", train, "1 2 3\t2\n1\t3\n"))
