"""Files -> sessions -> cuts, worked by hand; and rounds of many small devices."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from client_service.learning.named import Moment
from client_service.sessions.shard import TEST, TRAIN, VALID
from client_service.sessions.training import SessionTraining
from shared.errors import DataError
from shared.method.settings import method_settings
from simulation.devices import DevicePlan, train_devices
from simulation.sessions.crews import LastingSilos, PassingDevices, loss_of
from simulation.sessions.cut import CUTS, jaccard_distance
from simulation.sessions.generator import generate_sessions
from simulation.sessions.read import read_session_folder, read_session_table, read_sessions
from simulation.sessions.sessions import Sessions, keep_supported
from simulation.sessions.shards import divide_sessions

CPU = torch.device("cpu")


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
        ("", "1\t2\n", "a session a line"),
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
    found = read_session_table(path)
    lines = [found.clicks[first:last].tolist() for first, last in zip(found.starts, found.starts[1:], strict=False)]
    assert lines == [[2], [0, 1], [1, 0], [2, 0]]


def test_a_time_that_is_none_is_named_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "clicks.csv"
    path.write_text("session,time,item\na,1,x\na,noon,y\n")
    with pytest.raises(DataError, match="line 3: expected a time in seconds, got 'noon'"):
        read_session_table(path)


def test_each_filter_counts_what_it_drops(tmp_path: Path) -> None:
    long = " ".join(str(n % 3) for n in range(21))
    found = read_sessions(write_folder(tmp_path / "s", f"1\n{long}\n" + "1 2\n" * 18, "1\t2\n"))
    assert "2 sessions of fewer than 2 or more than 20 clicks dropped" in found.notes
    assert np.count_nonzero(found.splits == VALID) == 2  # a tenth of the training sessions, the last ones


def test_items_of_too_few_training_clicks_go_with_sessions_that_are_then_too_short() -> None:
    sessions = Sessions("s", np.array([0, 1, 0, 2, 0, 1]), np.array([0, 2, 4, 6]), np.zeros(3, np.int8), "abc")
    found = keep_supported(sessions, 2)
    assert found.clicks.tolist() == [0, 1, 0, 1] and len(found) == 2
    assert found.notes == ("1 clicks on items with fewer than 2 training clicks dropped",)


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
    runs = [list(train_devices(plan, PassingDevices(shards, plan.method, CPU), loss_of)) for _ in range(2)]
    assert [one.number for one in runs[0]] == [1, 2, 3, 4, 5, 6]
    assert [one.loss for one in runs[0]] == [one.loss for one in runs[1]]
    assert all(np.isfinite(value).all() for value in runs[0][-1].state.arrays.values())
    assert runs[0][-1].bytes == sum(np.asarray(value).nbytes for value in runs[0][-1].state.arrays.values())


def test_a_device_keeps_nothing_between_its_visits_and_a_silo_its_optimiser(
    few: Callable[..., tuple[DevicePlan, list]],
) -> None:
    plan, shards = few("fedavg")
    passing, lasting = PassingDevices(shards, plan.method, CPU), LastingSilos(shards, plan.method, CPU)
    for crew, kept in ((passing, False), (lasting, True)):
        list(train_devices(plan, crew, loss_of))
        training = crew.visit(shards[0].name, Moment(7, 7, 0))
        assert isinstance(training, SessionTraining)
        assert bool(training._optimisers) is kept
