"""Files of earlier versions name recall and ndcg, rho and margin as fields; they load, and answers still have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from client_service.data.interactions import Shard
from client_service.federation.checkpoint import (
    NAME,
    Owner,
    TrainingCheckpoint,
    _checksum,
    load_checkpoint,
    save_checkpoint,
)
from client_service.federation.messages import QualityOut, RoundCosts, RoundQuality
from client_service.federation.run_records import QUALITY, load_quality
from client_service.model_store.model_files import ModelHead, load_head
from client_service.models.closed_form.least_squares import Weighting
from client_service.models.score_fusion import ChosenPart, Recipe, build_fusion
from client_service.training.training_state import TrainingState
from shared.errors import SettingsError
from shared.method.settings import MethodSettings
from shared.method.spectrum import low_spectrum

COSTS = {"train_seconds": 0.5, "evaluate_seconds": 0.25, "overhead_seconds": 0.125, "bytes_up": 700, "bytes_down": 900}
START = {"round": 0, "recall": 0.25, "ndcg": 0.125, "loss": None, "saturated": 0.0, "rho": None, "margin": None}
ROUND = {"round": 1, "recall": 0.5, "ndcg": 0.375, "loss": 1.5, "saturated": 0.0, "rho": 0.75, "margin": 0.0625}
EARLIER: dict[str, Any] = {
    "client": "shop",
    "run": "run-1",
    "finished": True,
    "failure": None,
    "best_round": 1,
    "rounds": [START | COSTS, ROUND | COSTS],
    "test": {"recall@20": 0.5, "ndcg@20": 0.25},
    "users": 40,
    "items": 60,
    "edges": 300,
    "test_users": 39,
    "spectrum_seconds": 0.5,
    "start": {"cutoff": 16, "ridge": 1.0, "exponent": 0.3},
    "recipe": None,
    "angles": {"0": 0.5},
    "shared_digest": "f" * 64,
}


def test_a_quality_file_of_an_earlier_version_loads_and_is_answered_with_all_that_it_held(tmp_path: Path) -> None:
    (tmp_path / QUALITY).write_text(json.dumps(EARLIER), encoding="utf-8")
    quality = load_quality(tmp_path, "other")
    assert [entry.values for entry in quality.rounds] == [
        {"recall": 0.25, "ndcg": 0.125},
        {"recall": 0.5, "ndcg": 0.375},
    ]
    assert [entry.scalars for entry in quality.rounds] == [{}, {"rho": 0.75, "margin": 0.0625}]
    answer = quality.model_dump(mode="json")
    assert {name: answer[name] for name in EARLIER if name != "rounds"} | {"rounds": EARLIER["rounds"]} == EARLIER
    for now, before in zip(answer["rounds"], EARLIER["rounds"], strict=True):
        assert {name: now[name] for name in before} == before
    assert QualityOut.model_validate(answer) == quality


def test_the_head_of_a_model_of_an_earlier_version_loads(tmp_path: Path) -> None:
    head = ModelHead(shard="s", run="run-1", round=2, method=MethodSettings(), start=None, values={"ndcg": 0.5})
    earlier = head.model_dump(mode="json") | {"recall": 0.25, "parameters": "model-run-1.2.safetensors"}
    del earlier["values"]
    (tmp_path / "model.json").write_text(json.dumps(earlier), encoding="utf-8")
    found = load_head(tmp_path)
    assert found is not None and found.values == {"recall": 0.25, "ndcg": 0.5} and found.version == "run-1.2"


EARLIER_RECIPE = {
    "ridge": 3.0,
    "filter_loudness": 1.0,
    "weighting": {"ranks": [4], "absent": 0.3, "ridge": 0.01},
    "squares_loudness": 0.5,
    "ease_ridge": 300.0,
    "ease_loudness": 2.0,
    "common_loudness": 0.25,
    "frequency_loudness": 0.125,
}


@pytest.mark.parametrize(("missing", "frequency"), [((), 0.125), (("frequency_loudness",), 0.0)])
def test_a_recipe_of_an_earlier_version_loads(tmp_path: Path, missing: tuple[str, ...], frequency: float) -> None:
    head = ModelHead(shard="s", run="run-1", round=2, method=MethodSettings(), start=None, values={})
    recipe = {name: value for name, value in EARLIER_RECIPE.items() if name not in missing}
    text = json.dumps(head.model_dump(mode="json") | {"recipe": recipe})
    (tmp_path / "model.json").write_text(text, encoding="utf-8")
    found = load_head(tmp_path)
    parts = (
        ChosenPart("filter", 3.0, 1.0),
        ChosenPart("squares", Weighting((4,), 0.3, 0.01), 0.5),
        ChosenPart("ease", 300.0, 2.0),
        ChosenPart("frequency", 0.0, frequency),
    )
    assert found is not None and found.recipe == Recipe(parts, 0.25)
    assert ModelHead.model_validate_json(found.model_dump_json()) == found


def test_a_recipe_with_a_scorer_of_another_version_is_refused(planted: Shard) -> None:
    spectrum = low_spectrum(planted.train, 12)
    with pytest.raises(SettingsError, match=r"expected scorers among filter.*got 'oracle'"):
        build_fusion(Recipe((ChosenPart("oracle", 1.0, 1.0),)), planted.train, spectrum)


def test_a_training_checkpoint_of_an_earlier_version_loads(tmp_path: Path) -> None:
    owner = Owner(run="run-1", seed=3, shard="s", method=MethodSettings(), kind="", start=None, recipe=None)
    state = TrainingState({"model/w": np.ones(2, dtype=np.float32)}, {"margin": 0.5}, fitted=True)
    quality = QualityOut.model_validate(EARLIER)
    save_checkpoint(tmp_path, TrainingCheckpoint(owner, 1, quality, state))
    arrays, head = load_file(tmp_path / NAME), {"owner": owner.model_dump(mode="json"), "round": 1}
    text = json.dumps(head | {"quality": EARLIER, "scalars": dict(state.scalars), "fitted": True})
    save_file(arrays, tmp_path / NAME, metadata={"head": text, "sha256": _checksum(text, arrays)})
    found = load_checkpoint(tmp_path, owner)
    assert found is not None and found.quality == quality and found.state.scalars == {"margin": 0.5}


def test_a_round_without_these_measures_has_none_of_them_as_fields() -> None:
    entry = RoundQuality(round=1, values={"accuracy": 0.5}, scalars={"tau": 1.0})
    assert (entry.recall, entry.ndcg, entry.rho, entry.margin) == (None, None, None, None)
    assert RoundQuality.model_validate(entry.model_dump()) == entry
    assert RoundCosts.model_validate({"round": 1, "rho": 0.5}).scalars == {"rho": 0.5}
