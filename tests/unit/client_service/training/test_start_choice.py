"""What a shard's validation items chose is kept for the next run on the same shard, and for no other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import client_service.training.start_choice
from client_service.data.interactions import Shard
from client_service.event_log.shard_update import erase_users
from client_service.federation.training_run import TrainingRun
from client_service.models.closed_form.least_squares import Weighting
from client_service.models.initial_filter import Filter
from client_service.models.score_fusion import ChosenPart, Recipe
from client_service.serving.model_server import ModelServer
from client_service.tasks.items import ITEMS
from client_service.tasks.task import RunContext
from client_service.training.start_choice import Choice, load_choice, save_choice
from shared.method.settings import MethodSettings

MADE = Choice(
    start=Filter(8, 0.4, 0.3),
    recipe=Recipe((ChosenPart("filter", 3.0, 1.0), ChosenPart("squares", Weighting((4,), 0.3, 0.01), 0.5))),
)
SMALL = MethodSettings(width=4, layers=1, cutoff=12, negatives=4, catalogue=40)
SMALL_PLACE = RunContext("shop", "run-1", 0, SMALL, Path("unused"))


def test_what_is_kept_comes_back(planted: Shard, tmp_path: Path) -> None:
    assert load_choice(planted, 12, tmp_path) == Choice()
    save_choice(planted, 12, tmp_path / "new", MADE)
    assert load_choice(planted, 12, tmp_path / "new") == MADE


def test_another_shard_another_cutoff_or_a_damaged_file_is_as_if_there_were_none(
    planted: Shard, tmp_path: Path
) -> None:
    save_choice(planted, 12, tmp_path, MADE)
    assert load_choice(planted, 13, tmp_path) == Choice()
    assert load_choice(erase_users(planted, [planted.user_ids[0]]), 12, tmp_path) == Choice()
    (file,) = tmp_path.glob("choice-*.json")
    file.write_text('{"format": "lpsfed-choice/1", "start": "nothing"}')
    assert load_choice(planted, 12, tmp_path) == Choice()


def test_a_second_run_on_the_shard_chooses_nothing_again(
    planted: Shard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begun(folder: str, **changes: object) -> TrainingRun:
        method = SMALL.model_copy(update=changes)
        place = RunContext("shop", "run-1", 0, method, tmp_path / folder, cache=tmp_path / "cache")
        return TrainingRun(place, ITEMS, planted, ModelServer(), torch.device("cpu"))

    first = begun("one")
    for name in ("best_filter", "best_recipe"):
        monkeypatch.delattr(client_service.training.start_choice, name)
    second = begun("two")
    assert (second.quality.start, second.quality.recipe) == (first.quality.start, first.quality.recipe)
    assert second.quality.recipe is not None
    fedmf = replace(SMALL_PLACE, folder=tmp_path / "mf", kind="mf", cache=tmp_path / "cache")
    listed = replace(planted, places=np.arange(40))
    assert TrainingRun(fedmf, ITEMS, listed, ModelServer(), torch.device("cpu")).quality.recipe is None
    assert begun("three", fusion=False).quality.recipe is None
    assert load_choice(planted, 12, tmp_path / "cache").recipe is not None
