"""Replicas beside a silo's client: they start with what they get, read what it keeps, call nobody, follow the load."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
import yaml
from fastapi import FastAPI

from client_service.__main__ import server_settings
from client_service.boundary.policy import Policy
from client_service.compiled.publication import SERVING
from client_service.data.interaction_files import load_shard
from client_service.event_log.database import FOLDER
from client_service.http.server_app import create_server
from client_service.settings import client_settings
from tests.support.kept import publish_model
from tests.support.small import small_client

if TYPE_CHECKING:
    from conftest import Document, Environment, Pods, Render, Silos

    from client_service.settings import ClientSettings

ROOT = Path(__file__).parents[3]
ADAPTER = ROOT / "observability" / "adapter.yml"
KEYS = {"application_key": "a" * 20 + "pplication-key-0123", "operator_key": "o" * 20 + "perator-key-0123456"}


@pytest.fixture(params=["serving", "serving-requests"])
def documents(request: pytest.FixtureRequest, render: Render) -> list[Document]:
    return render(request.param)


@pytest.fixture
def beside(silos: Silos, tmp_path: Path) -> FastAPI:
    """The service of a server, beside a trainer that has published its shard."""
    settings = small_client(silos(1)[0], tmp_path)
    publish_model(settings, load_shard(settings.shard), None)
    return create_server(server_settings(settings, trains=False))


@pytest.fixture
def replica(documents: list[Document], pods: Pods) -> Document:
    return named(pods(documents), "serving")


@pytest.fixture
def client(documents: list[Document], pods: Pods) -> Document:
    return named(pods(documents), "client")


def named(found: list[Document], name: str) -> Document:
    (one,) = (one for one in found if one["metadata"]["name"] == name)
    return one


def of_kind(documents: list[Document], kind: str, name: str = "serving") -> Document:
    return named([one for one in documents if one["kind"] == kind], name)


def mounts(pod: Document) -> dict[str, Document]:
    (container,) = pod["spec"]["containers"]
    return {one["mountPath"]: one for one in container["volumeMounts"]}


def test_a_server_reads_the_model_and_the_shard_and_writes_the_log_alone(replica: Document, client: Document) -> None:
    """Nor can it read the ledger, or a key that signs. What applications tell is in a folder of its own: without it a
    server answered with the lists of erased users, and with what users had met since, until the next shard."""
    claims = {
        one["name"]: one["persistentVolumeClaim"]
        for one in replica["spec"]["volumes"]
        if "persistentVolumeClaim" in one
    }
    assert claims == {
        "state": {"claimName": "state-client-0"},
        "shard": {"claimName": "shard", "readOnly": True},
    }
    found = mounts(replica)
    assert {path for path, one in found.items() if not one.get("readOnly")} == {"/tmp", f"/state/{FOLDER}"}
    assert set(found) == {"/state/serving", f"/state/{FOLDER}", "/shards", "/secrets/api", "/tmp"}
    for name in (SERVING, FOLDER):
        assert (found[f"/state/{name}"]["subPath"], found[f"/state/{name}"]["name"]) == (name, "state")
    assert mounts(client)["/state"]["name"] == found["/state/serving"]["name"]


def test_pods_that_share_volumes_of_one_node_are_on_one_node(documents: list[Document], replica: Document) -> None:
    modes = {
        *of_kind(documents, "PersistentVolumeClaim", "shard")["spec"]["accessModes"],
        *of_kind(documents, "StatefulSet", "client")["spec"]["volumeClaimTemplates"][0]["spec"]["accessModes"],
    }
    assert modes == {"ReadWriteOnce"}
    (term,) = replica["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert term["labelSelector"]["matchLabels"] == {"app.kubernetes.io/name": "client"}


def test_a_client_goes_back_to_its_replicas_and_no_budget_keeps_them_where_it_is_not(
    documents: list[Document], client: Document
) -> None:
    (term,) = client["spec"]["affinity"]["podAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["podAffinityTerm"]["labelSelector"]["matchLabels"] == {"app.kubernetes.io/name": "serving"}
    assert "podAntiAffinity" in client["spec"]["affinity"]  # production's own, beside it
    (budget,) = (one["spec"] for one in documents if one["kind"] == "PodDisruptionBudget")
    assert budget["selector"]["matchLabels"] == {"app.kubernetes.io/name": "client"}


def read_replica(given: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> ClientSettings:
    for name in [name for name in os.environ if name.startswith("LPSFED_")]:
        monkeypatch.delenv(name)
    for name, value in given.items():
        if not name.endswith("_KEY_FILE"):
            monkeypatch.setenv(name, value)
    return client_settings(**KEYS)


def test_the_environment_makes_a_replica_s_settings(
    documents: list[Document], replica: Document, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = environment(replica, documents)
    assert {path for name, path in given.items() if name.endswith("_KEY_FILE")} == {
        "/secrets/api/application",
        "/secrets/api/operator",
    }
    made = read_replica(given, monkeypatch)
    (port,) = replica["spec"]["containers"][0]["ports"]
    (service,) = of_kind(documents, "Service")["spec"]["ports"]
    assert made.port == port["containerPort"] == service["port"] and service["targetPort"] == port["name"]
    assert (made.host, made.state_directory, made.shard) == ("0.0.0.0", Path("/state"), Path("/shards/north"))


def test_a_server_of_a_secure_silo_on_a_gpu_starts_too(
    documents: list[Document], replica: Document, environment: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ConfigMap is the client's: a replica has no list of members, and no GPU."""
    (config,) = (one for one in documents if one["kind"] == "ConfigMap")
    config["data"] |= {"LPSFED_CLIENT_SECURE": "true", "LPSFED_CLIENT_DEVICE": "cuda"}
    policy = Policy(common_basis="secure").model_dump_json()
    config["data"] |= {"LPSFED_CLIENT_POLICY": policy, "LPSFED_CLIENT_METHOD__BASIS__KIND": "exact"}
    made = read_replica(environment(replica, documents), monkeypatch)
    assert not made.secure and server_settings(made).application_key is not None


def test_a_server_is_started_as_one(replica: Document, client: Document) -> None:
    (own,), (other,) = replica["spec"]["containers"], client["spec"]["containers"]
    assert own["command"] == ["python", "-m", "client_service", "--server"] and "command" not in other
    assert own["image"] == other["image"]  # both read the same files


@pytest.mark.anyio
async def test_a_server_knows_the_routes_of_its_probes(replica: Document, beside: FastAPI) -> None:
    (container,) = replica["spec"]["containers"]
    paths = {container[probe]["httpGet"]["path"] for probe in ("startupProbe", "readinessProbe", "livenessProbe")}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=beside), base_url="http://10.1.2.3:8811") as http:
        codes = {path: (await http.get(path)).status_code for path in (*paths, "/metrics", "/health/other")}
    assert codes == {"/health/live": 200, "/health/ready": 503, "/metrics": 200, "/health/other": 404}


def test_how_many_there_are_is_the_scaler_s_alone(documents: list[Document]) -> None:
    deployment, scaler = of_kind(documents, "Deployment"), of_kind(documents, "HorizontalPodAutoscaler")["spec"]
    assert "replicas" not in deployment["spec"]
    target = {name: deployment[name] for name in ("apiVersion", "kind")}
    assert scaler["scaleTargetRef"] == {**target, "name": deployment["metadata"]["name"]}
    assert 2 <= scaler["minReplicas"] < scaler["maxReplicas"]
    requested = deployment["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]
    assert "cpu" in requested  # without it a scaler by CPU has nothing to go by


def test_replicas_scale_by_cpu_without_an_adapter_and_by_requests_with_one(render: Render) -> None:
    (cpu,) = of_kind(render("serving"), "HorizontalPodAutoscaler")["spec"]["metrics"]
    assert (cpu["type"], cpu["resource"]["name"]) == ("Resource", "cpu")
    (requests,) = of_kind(render("serving-requests"), "HorizontalPodAutoscaler")["spec"]["metrics"]
    (rule,) = yaml.safe_load(ADAPTER.read_text(encoding="utf-8"))["rules"]["custom"]
    assert requests["type"] == "Pods" and requests["pods"]["metric"]["name"] == rule["name"]["as"]


def test_requests_are_asked_for_before_one_application_is_refused(render: Render) -> None:
    (requests,) = of_kind(render("serving-requests"), "HorizontalPodAutoscaler")["spec"]["metrics"]
    pace = re.search(
        r"^\| `REQUESTS_PER_SECOND` \| (\d+)", (ROOT / "docs/settings.md").read_text(encoding="utf-8"), re.M
    )
    assert pace is not None and 0 < int(requests["pods"]["target"]["averageValue"]) < int(pace[1])


@pytest.mark.anyio
async def test_the_adapter_s_rule_counts_what_applications_ask_and_no_probe(beside: FastAPI) -> None:
    (rule,) = yaml.safe_load(ADAPTER.read_text(encoding="utf-8"))["rules"]["custom"]
    series = rule["seriesQuery"].partition("{")[0]
    wanted = re.search('route=~"([^"]+)"', rule["metricsQuery"])
    async with (
        beside.router.lifespan_context(beside),
        httpx.AsyncClient(transport=httpx.ASGITransport(app=beside), base_url="http://127.0.0.1") as http,
    ):
        for path in ("/v1/users/nobody/recommendations", "/health/live", "/metrics"):
            assert (await http.get(path)).is_success
        shown = (await http.get("/metrics")).text
    routes = re.findall(rf'^{series}{{.*route="([^"]+)"', shown, flags=re.M)
    assert wanted is not None
    counted = [route for route in routes if re.fullmatch(wanted[1], route)]
    assert len(counted) == 1 and counted[0].endswith("/recommendations") and len(routes) == 3
