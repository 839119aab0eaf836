"""Seven limits of time may be set. Two that exclude each other are refused by name, wherever both are known first."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from aggregator_service.settings import AggregatorSettings, aggregator_settings
from client_service.settings import ClientSettings, client_settings
from shared import timeouts
from shared.errors import ProtocolError, SettingsError
from shared.protocol.schemas import RunIn
from shared.timeouts import CallLimits

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")
SETTABLE = {
    ("client", "timeout_seconds"),
    ("client", "wait_seconds"),
    ("client", "call_seconds"),
    ("client", "poll_seconds"),
    ("aggregator", "longest_body_seconds"),
    ("aggregator", "signature_seconds"),
    ("run", "deadline_seconds"),
}


def test_no_more_than_seven_limits_of_time_can_be_set() -> None:
    kinds = {"client": ClientSettings, "aggregator": AggregatorSettings, "run": RunIn}
    found = {(side, name) for side, kind in kinds.items() for name in kind.model_fields if "second" in name}
    no_limits = {
        ("client", "requests_per_second"),
        ("aggregator", "requests_per_second"),
        ("client", "refresh_seconds"),
        ("client", "trainer_idle_seconds"),
    }
    assert found - no_limits == SETTABLE
    assert len(SETTABLE) == 7


def test_the_table_names_every_one_with_its_default_and_every_fixed_one() -> None:
    rows = dict(re.findall(r"^\| `([A-Za-z_]+)` \|.*?\| ([0-9.]+)", PAGE, flags=re.M))
    known = {name: value for name, value in vars(timeouts).items() if name.isupper()}
    assert {name: float(value) for name, value in rows.items()} == {name: float(value) for name, value in known.items()}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"wait_seconds": 31.0}, "wait_seconds: expected at most 30, the longest that an aggregator waits, got 31"),
        ({"call_seconds": 50.0}, r"call_seconds: expected more than wait_seconds \+ timeout_seconds = 50.*got 50"),
        ({"timeout_seconds": 130.0}, r"call_seconds: expected more than .*timeout_seconds = 150.*got 150"),
    ],
)
def test_a_client_does_not_start_with_limits_that_exclude_each_other(given: dict[str, float], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        client_settings(name="north", shard=Path("shard"), state_directory=Path("state"), **given)


def test_a_client_starts_with_limits_that_just_fit() -> None:
    given = {"wait_seconds": 30.0, "timeout_seconds": 9.0, "call_seconds": 39.5}
    settings = client_settings(name="north", shard=Path("shard"), state_directory=Path("state"), **given)
    assert settings.limits() == CallLimits(9.0, 30.0, 39.5)


def test_a_run_may_not_end_while_a_body_that_is_in_time_still_comes() -> None:
    settings = aggregator_settings(
        state_directory=Path("state"), operator_token="a token that nobody else has", longest_body_seconds=90.0
    )
    settings.require_time(RunIn(deadline_seconds=90.1))
    with pytest.raises(
        ProtocolError, match=r"deadline_seconds: expected more than longest_body_seconds = 90, .* got 90"
    ):
        settings.require_time(RunIn(deadline_seconds=90.0))


def test_what_both_sides_together_know_is_held_against_each_other() -> None:
    limits = CallLimits(timeout=60.0, wait=20.0, call=150.0)
    assert limits.longest == 165.0
    assert limits.list_conflicts(signature=60.1, deadline=165.1) == ()
    assert limits.list_conflicts(signature=None, deadline=None) == ()
    late, short = limits.list_conflicts(signature=60.0, deadline=165.0)
    assert late.startswith("timeout_seconds: expected less than the aggregator's signature_seconds = 60")
    assert late.endswith("got 60") and "(165 s) to take less than the run's deadline_seconds = 165" in short


def test_the_defaults_fit_together() -> None:
    CallLimits().require_possible()
    defaults = {"signature": float(timeouts.SIGNATURE_SECONDS), "deadline": timeouts.DEADLINE_SECONDS}
    assert CallLimits().list_conflicts(**defaults) == ()
    timeouts.require_deadline_above_body(timeouts.DEADLINE_SECONDS, timeouts.LONGEST_BODY_SECONDS)
    assert timeouts.LONGEST_BODY_SECONDS < timeouts.CALL_SECONDS <= timeouts.ANSWER_SECONDS
    assert timeouts.LONGEST_WAIT_SECONDS < timeouts.IDLE_SECONDS


def test_whoever_ends_a_container_waits_longer_than_the_service_takes() -> None:
    compose = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    graces = [int(found) for found in re.findall(r"stop_grace_period: (\d+)s", compose)]
    for path in (ROOT / "k8s" / "base").rglob("*.yaml"):
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            if document and document.get("kind") == "StatefulSet":
                graces.append(document["spec"]["template"]["spec"]["terminationGracePeriodSeconds"])
    assert len(graces) >= 3 and min(graces) > timeouts.GRACE_SECONDS
