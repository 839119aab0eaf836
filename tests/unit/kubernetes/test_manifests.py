"""Every overlay renders, holds to the Kubernetes schemas, refers to what is there, and brings no secret."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kubernetes_validate
import pytest
import yaml

if TYPE_CHECKING:
    from conftest import Document, Environment, Pods, Render

ROOT = Path(__file__).parents[3]
K8S = ROOT / "k8s"
VERSIONS = ("1.31", "1.37")  # the oldest that docs/kubernetes.md names, and the newest that there are schemas of
# Kinds that an operator brings; Kubernetes itself has no schema of them.
CUSTOM = {"Certificate", "PrometheusRule", "ServiceMonitor"}
CLUSTER_WIDE = {"Namespace"}
FROM_OUTSIDE = {
    "operator-token",
    "signing-key",
    "client-public-keys",
    "client-keys",
    "aggregator-tls",
    "members",
    "aggregator-signing-key",
    "aggregator-database",
    "aggregator-bucket",
}  # overlays/production/README.md says how, and components/workers
SELF_CONTAINED = ("demo", "no-dns", "tls")  # they make what secrets they need
NAMED = re.compile(r"([a-z0-9.-]+/)?lpsfed/(aggregator|aggregator-storage|client|tools):(\d+\.\d+\.\d+)(-cuda)?")


def identity(document: Document) -> tuple[str, str, str]:
    return document["kind"], document["metadata"].get("namespace", ""), document["metadata"]["name"]


@cache
def held_to_schema(text: str, version: str) -> None:
    """The same document is in several overlays: looked at once."""
    kubernetes_validate.validate(json.loads(text), version, strict=True)


def mentions(value: Any, key: str) -> list[str]:
    """Every text under `key`, at any depth."""
    if isinstance(value, list):
        return [found for one in value for found in mentions(one, key)]
    if not isinstance(value, dict):
        return []
    here = [value[key]] if isinstance(value.get(key), str) else []
    return here + [found for one in value.values() for found in mentions(one, key)]


def references(document: Document) -> set[tuple[str, str]]:
    """(kind, name) of what a document needs beside it."""
    spec = document.get("spec", {})
    found = {("PersistentVolumeClaim", name) for name in mentions(spec, "claimName")}
    found |= {("Secret", name) for name in mentions(spec, "secretName")}
    found |= {("ServiceAccount", name) for name in mentions(spec, "serviceAccountName")}
    found |= {("Service", name) for name in mentions(spec, "serviceName")}
    found |= {("Service", one["service"]["name"]) for one in backends(spec)}
    found |= {("ConfigMap", name) for name in named(spec, "configMap")}
    return found | {("ConfigMap", name) for key in ("configMapRef", "configMapKeyRef") for name in named(spec, key)}


def named(value: Any, key: str) -> list[str]:
    found = [value[key]["name"]] if isinstance(value, dict) and isinstance(value.get(key), dict) else []
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return found + [name for one in inner for name in named(one, key)]


def backends(spec: Document) -> list[Document]:
    return [path["backend"] for rule in spec.get("rules", []) for path in rule["http"]["paths"]]


@pytest.mark.parametrize("name", ["demo", "production", "gpu"])
def test_the_overlays_that_are_promised_are_there(name: str, render: Render) -> None:
    kinds = {document["kind"] for document in render(name)}
    assert {"Namespace", "StatefulSet", "Service", "ConfigMap", "NetworkPolicy", "ServiceAccount"} <= kinds


@pytest.mark.parametrize("version", VERSIONS)
def test_every_document_holds_to_the_schema(documents: list[Document], version: str) -> None:
    for document in documents:
        if document["kind"] not in CUSTOM:
            held_to_schema(json.dumps(document, sort_keys=True), version)


def test_the_schemas_catch_a_field_that_kubernetes_does_not_know(render: Render) -> None:
    (document,) = (one for one in render("demo") if identity(one)[::2] == ("StatefulSet", "aggregator"))
    document["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="readynessProbe"):
        held_to_schema(json.dumps(document), VERSIONS[-1])


def test_names_are_unique(documents: list[Document]) -> None:
    identities = [identity(document) for document in documents]
    assert len(set(identities)) == len(identities)


def test_every_namespace_comes_before_what_is_in_it(overlay: str, documents: list[Document], render: Render) -> None:
    beside = render("production/silo") if overlay.endswith("load-shard") else []
    made = {document["metadata"]["name"] for document in beside if document["kind"] == "Namespace"}
    for document in documents:
        kind, namespace, name = identity(document)
        if kind == "Namespace":
            made.add(name)
        assert kind in CLUSTER_WIDE or namespace in made, (kind, namespace, name)


def test_whatever_is_referred_to_is_there(overlay: str, documents: list[Document], render: Render) -> None:
    beside = render("production/silo") if overlay.endswith("load-shard") else []
    there = {identity(document) for document in (*documents, *beside)}
    there |= {
        ("PersistentVolumeClaim", one["metadata"]["namespace"], f"{claim['metadata']['name']}-{name}-0")
        for one in documents
        if one["kind"] == "StatefulSet"
        for name in [one["metadata"]["name"]]
        for claim in one["spec"]["volumeClaimTemplates"]
    }
    there |= {
        ("Secret", *identity(one)[1:2], one["spec"]["secretName"]) for one in documents if one["kind"] == "Certificate"
    }
    for document in documents:
        _, namespace, name = identity(document)
        for kind, wanted in references(document):
            needed = kind == "Secret" and not overlay.startswith(SELF_CONTAINED)
            outside = wanted in FROM_OUTSIDE and (needed or kind == "ConfigMap")
            assert outside or (kind, namespace, wanted) in there, (namespace, name, kind, wanted)


def test_whatever_is_mounted_is_a_volume_and_none_is_idle(documents: list[Document], pods: Pods) -> None:
    claims = {
        identity(one): {claim["metadata"]["name"] for claim in one["spec"]["volumeClaimTemplates"]}
        for one in documents
        if one["kind"] == "StatefulSet"
    }
    for pod in pods(documents):
        volumes = {volume["name"] for volume in pod["spec"]["volumes"]} | claims.get(identity(pod), set())
        containers = [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
        assert {mount["name"] for one in containers for mount in one["volumeMounts"]} == volumes


def test_the_look_for_references_sees_all_kinds_of_them(render: Render) -> None:
    kinds = {kind for document in render("production") for kind, _ in references(document)}
    assert kinds == {"ConfigMap", "PersistentVolumeClaim", "Secret", "Service", "ServiceAccount"}


def test_no_secret_is_brought_along(documents: list[Document], pods: Pods) -> None:
    assert [identity(document) for document in documents if document["kind"] == "Secret"] == []
    keys = [key for document in documents if document["kind"] == "ConfigMap" for key in document["data"]]
    keys += [entry["name"] for pod in pods(documents) for entry in pod["spec"]["containers"][0].get("env", [])]
    secret = [key for key in keys if re.search("TOKEN|SECRET|PASSWORD|KEY", key)]
    assert [key for key in secret if not key.endswith(("_FILE", "_KEYS_DIRECTORY", "_TLS_KEY"))] == []


def test_images_are_pinned_to_the_version_of_the_project(documents: list[Document], pods: Pods) -> None:
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), flags=re.M)
    assert version is not None
    for image in [image for pod in pods(documents) for image in mentions(pod["spec"], "image")]:
        found = NAMED.fullmatch(image)
        assert found is not None and found[3] == version[1], image


def test_there_is_one_of_each_and_its_state_outlives_it(documents: list[Document]) -> None:
    for document in (one for one in documents if one["kind"] == "StatefulSet"):
        spec = document["spec"]
        assert spec["replicas"] == 1
        assert spec["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}
        assert [claim["metadata"]["name"] for claim in spec["volumeClaimTemplates"]] == ["state"]


def test_each_service_that_must_not_stand_still_has_a_budget_that_lets_a_node_be_drained(
    documents: list[Document],
) -> None:
    budgets = {
        (one["metadata"]["namespace"], one["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"]): one["spec"]
        for one in documents
        if one["kind"] == "PodDisruptionBudget"
    }
    sets = {
        (one["metadata"]["namespace"], one["metadata"]["name"])
        for one in documents
        if one["kind"] == "StatefulSet" or (one["kind"], one["metadata"]["name"]) == ("Deployment", "aggregator")
    }
    assert set(budgets) == sets
    assert all(one["maxUnavailable"] == 1 for one in budgets.values())


def test_the_production_aggregator_can_write_the_keys_of_those_whom_it_invites(
    render: Render, environment: Environment, pods: Pods
) -> None:
    documents = render("production/aggregator")
    (pod,) = pods(documents)
    folder = environment(pod, documents)["LPSFED_AGGREGATOR_KEYS_DIRECTORY"]
    (mount,) = (one for one in pod["spec"]["containers"][0]["volumeMounts"] if one["mountPath"] == folder)
    (volume,) = (one for one in pod["spec"]["volumes"] if one["name"] == mount["name"])
    claim = ("PersistentVolumeClaim", "lpsfed-aggregator", volume["persistentVolumeClaim"]["claimName"])
    assert not mount.get("readOnly") and claim in map(identity, documents)
    assert pod["spec"]["securityContext"]["fsGroup"] == pod["spec"]["securityContext"]["runAsUser"]


OF_ONE_ORGANISATION = re.compile(r"example\.org|203\.0\.113|silo-north|=north\b")


@pytest.mark.parametrize("side", ["aggregator", "silo"])
def test_every_line_of_production_that_an_organisation_changes_is_marked(side: str) -> None:
    """A copy with the example's registry pulls no image, one with its namespace loads the shard into another's."""
    lines = {
        f"{file.relative_to(K8S)}: {line}"
        for file in (K8S / "overlays" / "production" / side).rglob("*.yaml")
        for line in file.read_text(encoding="utf-8").splitlines()
        if OF_ONE_ORGANISATION.search(line)
    }
    assert len(lines) >= 4 and [line for line in sorted(lines) if "# <-" not in line] == []
    assert {file.partition(":")[0] for file in lines if "newName" in file}  # the registry is one of them


def test_a_policy_to_dns_allows_names_and_nothing_else(overlay: str, documents: list[Document]) -> None:
    """Where names are not to be asked for it is not there: one that allows nothing said what it did not do."""
    found = [one["spec"] for one in documents if identity(one)[::2] == ("NetworkPolicy", "to-dns")]
    ports = [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]
    place = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
        "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
    }
    assert all(one["egress"] == [{"to": [place], "ports": ports}] for one in found)
    assert found or not overlay.startswith(("demo/silo", "tls/silo"))
    assert not found or not overlay.startswith(("no-dns", "production"))


def test_selectors_find_the_pods_they_are_meant_for(documents: list[Document], pods: Pods) -> None:
    """Of Services, disruption budgets and StatefulSets; policies have a test of their own."""
    for document in (one for one in documents if one["kind"] not in CUSTOM):
        selector = document.get("spec", {}).get("selector", {})
        wanted = selector.get("matchLabels", selector if document["kind"] == "Service" else {})
        if wanted:
            here = [pod for pod in pods(documents) if pod["metadata"]["namespace"] == document["metadata"]["namespace"]]
            found = [pod for pod in here if wanted.items() <= pod["metadata"]["labels"].items()]
            assert len(found) == 1, identity(document)


def test_a_scraper_finds_one_service(render: Render) -> None:
    """The headless one leads to the same pod: with both, each figure would be counted twice."""
    documents = render("monitoring")
    (monitor,) = (one for one in documents if one["kind"] == "ServiceMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    services = [one for one in documents if one["kind"] == "Service" and wanted <= one["metadata"]["labels"].items()]
    assert [one["metadata"]["name"] for one in services] == ["aggregator"]
    assert monitor["spec"]["endpoints"][0]["port"] in [port["name"] for port in services[0]["spec"]["ports"]]


def test_every_base_and_component_is_used_by_an_overlay() -> None:
    template = (ROOT / "simulation/deployment/templates/kubernetes-silo.yml").read_text(encoding="utf-8")
    used = {(K8S / one).resolve() for one in re.findall(r"\{\{ manifests \}\}/(\S+)", template)}
    for file in K8S.rglob("kustomization.yaml"):
        text = file.read_text(encoding="utf-8")
        content = yaml.safe_load(text)
        offered = re.findall(r"^ *# - (\.\./\S+) # <-", text, flags=re.M)  # lines that an operator may switch on
        listed = (*content.get("resources", ()), *content.get("components", ()), *offered)
        used |= {(file.parent / one).resolve() for one in listed}
    assert [str(path) for path in K8S.glob("[bc]*/*") if path.resolve() not in used] == []


@pytest.mark.parametrize("silo", [1, 2, 3, 4])
def test_a_silo_is_stamped_in_about_a_dozen_lines(silo: int) -> None:
    lines = (K8S / "overlays" / "demo" / f"silo-{silo}" / "kustomization.yaml").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 14 and [line for line in lines if f"-{silo}" in line] == lines[2:3] + lines[-1:]
