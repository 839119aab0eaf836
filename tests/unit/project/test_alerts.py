"""Every alert asks for series that a service shows at /metrics, and has its place in docs/operations.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from aggregator_service.rounds.metrics import AggregatorMetrics
from client_service.federation.messages import StatusOut
from client_service.metrics import PHASES, ClientMetrics
from client_service.privacy.accounting import PrivacyOut
from shared.web.listening import PORT
from shared.web.tls import TlsIdentity

ROOT = Path(__file__).parents[3]
GROUPS = yaml.safe_load((ROOT / "observability" / "alerts.yml").read_text(encoding="utf-8"))["groups"]
RULES = [rule for group in GROUPS for rule in group["rules"]]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
STATUS = StatusOut(client="north", phase="training", device="cpu", device_reason="")


class Certificate(TlsIdentity):
    """One of ten days, without files."""

    def __init__(self) -> None:
        pass

    @property
    def days_left(self) -> float:
        return 10.0


def exposed(tmp_path: Path) -> tuple[str, str]:
    """What both services answer at /metrics, with all that they may be told to show."""
    aggregator, client = AggregatorMetrics(), ClientMetrics()
    aggregator.watch_identities({PORT: Certificate()})
    aggregator.watch_state(tmp_path, lambda: None, lambda: "no room")
    client.watch({PORT: Certificate()})
    client.watch_state(tmp_path, lambda: STATUS)
    client.watch_privacy(lambda: PrivacyOut.model_construct(epsilon=0.5, budget=1.0))
    return aggregator.text().decode(), client.text().decode()


def series(text: str) -> set[str]:
    ends = {"histogram": ("_bucket", "_sum", "_count")}
    kinds = re.findall(r"^# TYPE (\w+) (\w+)", text, flags=re.M)
    return {f"{name}{end}" for name, kind in kinds for end in ends.get(kind, ("",))}


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_an_alert_asks_for_series_that_are_there(rule: dict[str, Any], tmp_path: Path) -> None:
    asked = set(re.findall(r"\blpsfed_\w+", rule["expr"])) | set(re.findall(r"\bup\b", rule["expr"]))
    assert asked and asked <= set().union(*map(series, exposed(tmp_path))) | {"up"}
    assert rule["annotations"]["summary"].endswith(".") and rule["labels"]["severity"] in ("critical", "warning")
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["expr"].count("(") == rule["expr"].count(")") and rule["expr"].count("{") == rule["expr"].count("}")


def test_each_group_asks_one_service() -> None:
    for group, prefix in zip(GROUPS, ("lpsfed_aggregator_", "lpsfed_client_"), strict=True):
        asked = {word for rule in group["rules"] for word in re.findall(r"\blpsfed_\w+", rule["expr"])}
        assert all(word.startswith(prefix) for word in asked) and len(asked) > 5


def test_what_to_do_about_every_alert_is_written_down() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names) and [name for name in names if f"`{name}`" not in OPERATIONS] == []


def test_the_cluster_s_rules_are_the_aggregator_s() -> None:
    path = ROOT / "k8s" / "components" / "servicemonitor" / "alerts.yaml"
    rule = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert rule["kind"] == "PrometheusRule" and rule["spec"]["groups"] == GROUPS[:1]


def test_prometheus_reads_the_rules() -> None:
    config = yaml.safe_load((ROOT / "observability" / "prometheus.yml").read_text(encoding="utf-8"))
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    mounts = compose["services"]["prometheus"]["volumes"]
    assert config["rule_files"] == ["alerts.yml"]
    assert "./observability/alerts.yml:/etc/prometheus/alerts.yml:ro" in mounts
    assert {job["job_name"] for job in config["scrape_configs"]} == {"aggregator"}


def test_a_client_s_series_say_what_it_does_and_nothing_of_its_data(tmp_path: Path) -> None:
    text = exposed(tmp_path)[1]
    assert 'lpsfed_client_phase{phase="training"} 1.0' in text and "lpsfed_client_hindered 0.0" in text
    assert text.count("lpsfed_client_phase{") == len(PHASES) and "north" not in text
    assert not re.search(r"recall|ndcg|loss|users\b(?!/)|items\b(?!/)|edges", series_names(text))


def series_names(text: str) -> str:
    return " ".join(sorted(series(text)))


def test_every_phase_that_a_client_shows_is_one_of_the_series() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "client_service").rglob("*.py"))
    noted = set(re.findall(r"_(?:note|set_status)\(phase=\"([a-z ]+)\"", source)) | {
        "starting",
        "finished",
        "failed",
        "cancelled",
    }
    assert noted == set(PHASES)


def test_the_aggregator_s_disk_and_readiness_are_told(tmp_path: Path) -> None:
    text = exposed(tmp_path)[0]
    assert "lpsfed_aggregator_disk_refuses 1.0" in text and "lpsfed_aggregator_ready 1.0" in text
    assert float(re.findall(r"^lpsfed_aggregator_disk_free_bytes (\S+)", text, flags=re.M)[0]) > 0
