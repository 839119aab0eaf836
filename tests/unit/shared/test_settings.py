"""Method settings: what the presets say, how one field is replaced, and what a wrong one is told."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from shared.errors import SettingsError
from shared.method.settings import PRESET_ROUNDS, PRESETS, MethodSettings, Preset, method_settings


def test_the_paper_preset_holds_the_values_of_appendix_d6() -> None:
    paper = method_settings("paper")
    # "embedding dimension of 64 ... RMSProp ... 0.0005 ... 5 epochs ... 40 global epochs ... two graph convolution
    # layers ... tau = 0.1 ... omega = 0.25 ... initialized from a normal distribution ... first two global epochs".
    assert (paper.width, paper.layers) == (64, 2)
    assert (paper.optimiser, paper.learning_rate, paper.mlp_learning_rate) == ("rmsprop", 0.0005, 0.0005)
    assert (paper.local_epochs, PRESET_ROUNDS["paper"]) == (5, 40)
    assert (paper.temperature, paper.refinement, paper.start) == (0.1, 0.25, "random")
    assert (paper.warmup(40), paper.warmup_trains) == (2, "tables")
    assert paper.leave_one_out is False and paper.loss == "bc" and paper.similarity_floor is None
    assert paper.anchor.graph == "gnmk" and paper.anchor.every_round is True


def test_without_a_preset_the_fields_own_defaults_hold() -> None:
    assert method_settings() == method_settings("default") == MethodSettings()
    assert MethodSettings().start == "exact" and MethodSettings().anchor.every_round is False


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_one_field_is_replaced_and_the_others_stay(preset: Preset) -> None:
    assert method_settings(preset, width=32) == method_settings(preset).model_copy(update={"width": 32})


@pytest.mark.parametrize("preset", ["default", "paper"])
def test_a_dotted_name_reaches_a_field_of_the_anchor(preset: Preset) -> None:
    found = method_settings(preset, **{"anchor.graph": "er", "anchor.users": 50, "layers": 3})
    assert (found.anchor.graph, found.anchor.users, found.layers) == ("er", 50, 3)
    unchanged = {"graph", "users"}
    before = method_settings(preset).anchor
    assert found.anchor.model_dump(exclude=unchanged) == before.model_dump(exclude=unchanged)


def test_replacing_a_field_leaves_the_preset_itself_as_it_was() -> None:
    method_settings("paper", **{"anchor.graph": "er", "temperature": 0.7})
    assert PRESETS["paper"]["anchor"] == {"every_round": True} and PRESETS["paper"]["temperature"] == 0.1


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"widht": 64}, ["widht: expected the name of a setting"]),
        ({"anchor.nodes": 7}, ["anchor.nodes: expected the name of a setting"]),
        ({"width": 0}, ["width", "a number of 1 or more", "got 0"]),
        ({"layers": 9}, ["layers", "a number of at most 8", "got 9"]),
        ({"temperature": 0.0}, ["temperature", "above 0", "got 0.0"]),
        ({"margin_strength": "much"}, ["margin_strength", "got 'much'"]),
        ({"refinement": float("nan")}, ["refinement", "nan"]),
        ({"optimiser": "lbfgs"}, ["optimiser", "adam, rmsprop or sgd", "got lbfgs"]),
        ({"anchor.users": 7}, ["anchor.users", "8 or more", "got 7"]),
        ({"width": 0, "layers": 0}, ["width", "layers"]),
    ],
)
def test_a_wrong_setting_is_named_with_what_was_expected_and_what_came(
    overrides: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(SettingsError) as raised:
        method_settings(**overrides)
    assert [word for word in words if word not in str(raised.value)] == [], str(raised.value)


@pytest.mark.parametrize(("rounds", "warmup"), [(1, 1), (5, 1), (6, 2), (40, 2)])
def test_a_run_of_at_most_five_rounds_warms_up_for_one(rounds: int, warmup: int) -> None:
    assert MethodSettings().warmup(rounds) == warmup


def test_no_warm_up_stays_no_warm_up_in_a_short_run() -> None:
    assert MethodSettings(warmup_rounds=0).warmup(3) == MethodSettings(warmup_rounds=0).warmup(30) == 0


def test_settings_cannot_be_changed_after_they_were_agreed() -> None:
    with pytest.raises(ValidationError):
        MethodSettings().width = 3  # type: ignore[misc]
