"""What a run has brought a silo, as its own client tells it: waited for while it is judged, and of no other silo."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from client_service.federation.messages import QualityOut, StatusOut
from client_service.joining_value.messages import ComparisonOut, FigureOut, GroupOut
from shared.errors import ConflictError, FederationError, ProtocolError, SettingsError
from simulation.operating import silo_worth as subject

FIGURE, RATIO = FigureOut(mean=0.2, low=0.1, high=0.3), FigureOut(mean=1.5, low=1.2, high=1.9)
GROUP = GroupOut(
    name="all users", users=60, popularity=FIGURE, alone=FIGURE, federated=FIGURE, gain=FIGURE, ratio=RATIO
)
JUDGED = QualityOut(
    client="north",
    run="run-2",
    finished=True,
    comparison=ComparisonOut(measure="ndcg@20", users=60, few=False, groups=(GROUP,)),
)
OPEN = QualityOut(client="north", run="run-2")
HTTP = httpx.Client


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A client that tells these qualities one after the other, the last one always, and its round of five."""

    def plays(*qualities: QualityOut, round: int = 5, status: int = 200) -> None:
        said = list(qualities)

        def answer(request: httpx.Request) -> httpx.Response:
            assert request.headers["authorization"] == "Bearer the key"
            if request.url.path == "/v1/status":
                found: Any = StatusOut(
                    client="north", phase="x", run="run-2", round=round, rounds=5, device="cpu", device_reason=""
                )
            else:
                found = said.pop(0) if len(said) > 1 else said[0]
            return httpx.Response(status, content=found.model_dump_json())

        def client(**options: Any) -> httpx.Client:
            return HTTP(transport=httpx.MockTransport(answer), headers=options["headers"])

        monkeypatch.setattr(httpx, "Client", client)
        monkeypatch.setattr(subject, "POLL_SECONDS", 0.0)

    return plays


NORTH = subject.SiloAccess(Path("north/silo.toml"), "north", "http://127.0.0.1:8801", "the key", "d7" * 32)


def test_a_run_that_is_over_and_not_judged_yet_is_waited_for(told: Callable[..., None]) -> None:
    told(OPEN, OPEN, JUDGED)
    found = subject.fetch_worth(NORTH)
    assert (found.run, found.ratio) == ("run-2", (1.2, 1.5, 1.9))
    assert (
        found.line == "north: NDCG@20 alone 0.2000, together 0.2000, x 1.500 [1.200, 1.900] (run-2, 60 evaluated users)"
    )
    told(OPEN, round=3)
    with pytest.raises(ConflictError, match="expected a run that has ended"):
        subject.fetch_worth(NORTH)  # three of five rounds: that may take hours
    told(QualityOut(client="north"), round=0)
    with pytest.raises(ConflictError, match="got none so far"):
        subject.fetch_worth(NORTH)
    told(JUDGED.model_copy(update={"run": "run-1"}), OPEN, JUDGED, JUDGED)
    assert subject.wait_for_worth(NORTH, "run-2").run == "run-2"


def test_what_no_interval_can_be_of_has_none(told: Callable[..., None]) -> None:
    group = GROUP.model_copy(update={"ratio": None})
    compared = ComparisonOut(measure="ndcg@20", users=1, few=True, groups=(group,))
    told(JUDGED.model_copy(update={"comparison": compared}))
    found = subject.fetch_worth(NORTH)
    assert found.ratio is None and found.line.endswith(
        "together 0.2000 (run-2, 60 evaluated users: too few to say much)"
    )
    told(JUDGED.model_copy(update={"comparison": compared.model_copy(update={"measure": "auc"})}))
    assert (
        ": AUC alone 0.2000" in subject.fetch_worth(NORTH).line
        and "60 evaluated nodes" in subject.fetch_worth(NORTH).line
    )


def test_another_silo_s_client_and_a_refused_key_are_named(
    told: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    told(JUDGED.model_copy(update={"client": "south"}))
    with pytest.raises(ProtocolError, match="expected the client of north, got that of south"):
        subject.fetch_worth(NORTH)
    told(JUDGED, status=401)
    with pytest.raises(FederationError, match=r"it refuses the one that north/silo\.toml names"):
        subject.fetch_worth(NORTH)
    told(JUDGED.model_copy(update={"run": "run-1"}))
    monkeypatch.setattr(subject, "PATIENCE_SECONDS", -1.0)
    with pytest.raises(FederationError, match="expected a silo that has judged run-2"):
        subject.wait_for_worth(NORTH, "run-2")


def test_the_aggregator_is_that_of_the_settings_unless_one_is_given(tmp_path: Path) -> None:
    def access(url: str) -> subject.SiloAccess:
        (tmp_path / "silo.toml").write_text(f'name = "north"\naggregator_url = "{url}"\n')
        return subject.read_access(tmp_path / "silo.toml")

    one, other = access("http://127.0.0.1:9000"), access("https://aggregator.example")
    assert subject.choose_aggregator_url(None, [one, one], "usual") == "http://127.0.0.1:9000"
    assert subject.choose_aggregator_url("http://given", [one, other], "usual") == "http://given"
    assert subject.choose_aggregator_url(None, [NORTH], "usual") == "usual"
    with pytest.raises(SettingsError, match="expected silos of one aggregator, or --aggregator-url, got http://127"):
        subject.choose_aggregator_url(None, [one, other], "usual")


def test_a_stranger_s_settings_are_refused(tmp_path: Path) -> None:
    subject.require_members([NORTH], "d7" * 32, {"north", "south"})
    with pytest.raises(SettingsError, match="another aggregator"):
        subject.require_members([NORTH], "ab" * 32, {"north"})
    with pytest.raises(SettingsError, match=r"got 'north' of north/silo\.toml"):
        subject.require_members([NORTH], "d7" * 32, {"south"})
    with pytest.raises(SettingsError, match="got no file"):
        subject.read_access(tmp_path / "silo.toml")
    (tmp_path / "silo.toml").write_text("port = 1\n")
    with pytest.raises(SettingsError, match="with its name, got none"):
        subject.read_access(tmp_path / "silo.toml")
