"""What the README promises is there: every setting is named, every command exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from aggregator_service.settings import AggregatorSettings
from client_service.policy import Policy
from client_service.settings import ClientSettings
from client_service.tasks import TASKS
from shared.protocol.schemas import RunIn
from simulation.cli.commands import COMMANDS
from simulation.cli.keys import app as keys

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("settings", [AggregatorSettings, ClientSettings])
def test_every_setting_of_a_service_is_documented(settings: type[BaseModel]) -> None:
    assert [name for name in settings.model_fields if f"`{name.upper()}`" not in README] == []


def test_all_that_a_silo_s_policy_says_and_every_task_are_documented() -> None:
    assert [name for name in Policy.model_fields if f"`{name}`" not in read_row("POLICY")] == []
    assert [name for name in TASKS if f"`{name}`" not in read_row("TASK")] == []


def read_row(setting: str) -> str:
    """Of the table of settings."""
    [row] = re.findall(rf"^\| `{setting}` \|.*$", README, flags=re.M)
    return str(row)


def test_every_field_of_a_run_is_documented() -> None:
    assert [name for name in RunIn.model_fields if f"`{name}`" not in README] == []


def test_every_command_that_the_readme_shows_exists() -> None:
    shown = set(re.findall(r"lpsfed ([a-z-]+)", "\n".join(re.findall(r"```sh\n(.*?)```", README, flags=re.S))))
    assert (
        {"demo", "partition", "simulate", "report", "run", "secret", "keys", "privacy-report"}
        <= shown
        <= COMMANDS.keys()
    )


def test_every_command_about_keys_that_the_readme_shows_exists() -> None:
    shown = set(re.findall(r"lpsfed keys ([a-z]+)", README))
    assert shown == {
        command.name or (command.callback and command.callback.__name__) for command in keys.registered_commands
    }
