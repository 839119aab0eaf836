"""A silo joins with data of every task that a client can have, and of no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from client_service.settings import ClientSettings
from client_service.tasks import TASKS
from shared.errors import SettingsError
from simulation.joining.own_data import OWN_DATA, USUAL_TASK, own_data_of


def test_the_tasks_are_those_of_the_client() -> None:
    assert sorted(OWN_DATA) == sorted(TASKS)
    assert ClientSettings.model_fields["task"].default == USUAL_TASK


@pytest.mark.parametrize("task", OWN_DATA)
def test_a_folder_without_a_shard_has_no_description(task: str, tmp_path: Path) -> None:
    assert own_data_of(task).describe(tmp_path / "shard") is None


def test_an_unknown_task_is_refused_with_the_known_ones() -> None:
    """As an aggregator of a later version, or one that lies, may name it."""
    with pytest.raises(SettingsError, match="expected one of items, sessions, nodes, got 'songs'"):
        own_data_of("songs")
