"""A folder of a run says in JSON by which command it was begun, as earlier versions said it."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.errors import SettingsError
from simulation.datasets.columns import ITEM_OPTIONS
from simulation.engines.run_folders import describe_command, open_run_folder
from simulation.partitioning.sources import Cut

EARLIER = {"clients", "method", "number", "split_seed", "min_rating", "split", "rules", "scenario", "file_options"}


def test_the_words_of_a_command_are_json_and_those_of_earlier_versions(tmp_path: Path) -> None:
    words = describe_command("ratings.csv", Cut(4, file_options=ITEM_OPTIONS), seed=0)
    assert words.keys() == EARLIER | {"data", "seed"} and words["file_options"].keys() == {"columns", "delimiter"}
    open_run_folder(tmp_path, words)
    open_run_folder(tmp_path, words)


def test_another_small_shop_is_another_command(tmp_path: Path) -> None:
    open_run_folder(tmp_path, describe_command("a", Cut(scenario="disjoint", small=10)))
    with pytest.raises(SettingsError):
        open_run_folder(tmp_path, describe_command("a", Cut(scenario="disjoint", small=25)))
