"""Every pod of every overlay is `restricted` and more: read-only, bounded, watched, no token of the API server."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Document, Pods, Render

USER = 10001  # of the images
VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
BOUNDS = ("cpu", "memory", "ephemeral-storage")
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
LEVELS = ("enforce", "audit", "warn")


def containers(pod: Document) -> list[Document]:
    spec = pod["spec"]
    return [*spec.get("initContainers", []), *spec.get("ephemeralContainers", []), *spec["containers"]]


def problems(pod: Document) -> list[str]:
    """What keeps a pod from being as strict as all of ours are; empty for a good one."""
    found = [f"pod: {problem}" for problem in (*of_pod(pod), *of_volumes(pod["spec"]))]
    for container in containers(pod):
        found += [f"{container['name']}: {problem}" for problem in of_container(container)]
    if pod["kind"] in ("StatefulSet", "Deployment"):
        for container in pod["spec"]["containers"]:
            found += [f"{container['name']}: {problem}" for problem in of_probes(container)]
    return found


def of_pod(pod: Document) -> Iterator[str]:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/, and what it leaves open."""
    spec = pod["spec"]
    security = spec.get("securityContext", {})
    yield from (f"{name} is set" for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name))
    yield from expected(security, "runAsNonRoot", True)
    yield from (
        problem for name in ("runAsUser", "runAsGroup", "fsGroup") for problem in expected(security, name, USER)
    )
    yield from expected(security, "seccompProfile", {"type": "RuntimeDefault"})
    yield from (f"{name} is set" for name in ("sysctls", "windowsOptions", "seLinuxOptions") if name in security)
    yield from expected(spec, "automountServiceAccountToken", False)
    yield from expected(spec, "enableServiceLinks", False)
    if not 0 < spec.get("terminationGracePeriodSeconds", 0) <= 120:
        yield "terminationGracePeriodSeconds: expected 1 to 120"


def of_volumes(spec: Document) -> Iterator[str]:
    for volume in spec.get("volumes", []):
        (kind,) = set(volume) - {"name"}
        if kind not in VOLUMES:
            yield f"volume {volume['name']}: {kind}"
        if kind == "projected" and any("serviceAccountToken" in source for source in volume[kind]["sources"]):
            yield f"volume {volume['name']}: a token of the API server"
        if kind == "emptyDir" and "sizeLimit" not in volume[kind]:
            yield f"volume {volume['name']}: no limit"


def of_container(container: Document) -> Iterator[str]:
    security = container.get("securityContext", {})
    yield from expected(security, "allowPrivilegeEscalation", False)
    yield from expected(security, "readOnlyRootFilesystem", True)
    yield from expected(security, "capabilities", {"drop": ["ALL"]})
    known = {"allowPrivilegeEscalation", "readOnlyRootFilesystem", "capabilities"}
    yield from (f"{name} is set in the container" for name in sorted(set(security) - known))
    yield from ("hostPort is set" for port in container.get("ports", []) if "hostPort" in port)
    resources = container.get("resources", {})
    for kind in ("requests", "limits"):
        yield from (f"no {kind} of {name}" for name in BOUNDS if name not in resources.get(kind, {}))
    for name, requested in resources.get("requests", {}).items():
        if quantity(requested) > quantity(resources.get("limits", {}).get(name, requested)):
            yield f"more {name} is requested than allowed"


def quantity(text: str) -> float:
    """'500m' -> 0.5, '1Gi' -> 1024 ** 3."""
    number, suffix = re.fullmatch(r"([0-9.]+)(m|Mi|Gi|)", text).groups()  # type: ignore[union-attr]
    return float(number) * {"": 1.0, "m": 0.001, "Mi": 2.0**20, "Gi": 2.0**30}[suffix]


def of_probes(container: Document) -> Iterator[str]:
    yield from (f"no {name}" for name in PROBES if "httpGet" not in container.get(name, {}))
    ports = {port["name"] for port in container.get("ports", [])}
    for name in PROBES:
        if container.get(name, {}).get("httpGet", {}).get("port", "http") not in ports:
            yield f"{name}: a port that the container has not got"


def expected(holder: Document, name: str, value: Any) -> Iterator[str]:
    if name not in holder or holder[name] != value:
        yield f"{name}: expected {value}"


def test_every_pod_is_as_strict_as_it_can_be(documents: list[Document], pods: Pods) -> None:
    found = pods(documents)
    assert found and {pod["metadata"]["name"]: problems(pod) for pod in found if problems(pod)} == {}


def test_every_namespace_lets_only_restricted_pods_in(documents: list[Document]) -> None:
    for namespace in (one for one in documents if one["kind"] == "Namespace"):
        labels = namespace["metadata"]["labels"]
        assert {labels[f"pod-security.kubernetes.io/{level}"] for level in LEVELS} == {"restricted"}


def test_no_service_account_brings_a_token(documents: list[Document]) -> None:
    accounts = [one for one in documents if one["kind"] == "ServiceAccount"]
    assert [one["metadata"]["name"] for one in accounts if one["automountServiceAccountToken"] is not False] == []


def test_whatever_runs_to_an_end_has_a_limit(documents: list[Document]) -> None:
    for document in (one for one in documents if one["kind"] in ("Job", "Pod")):
        assert 0 < document["spec"]["activeDeadlineSeconds"] <= 24 * 3600
        assert document["kind"] == "Pod" or document["spec"]["backoffLimit"] <= 10


def test_a_client_alone_writes_its_shard_and_holds_no_other(documents: list[Document], pods: Pods) -> None:
    """And the aggregator mounts none."""
    for pod in pods(documents):
        claims = {
            volume["name"]
            for volume in pod["spec"]["volumes"]
            if volume.get("persistentVolumeClaim", {}).get("claimName") == "shard"
        }
        mounts = [one for one in pod["spec"]["containers"][0]["volumeMounts"] if one["name"] in claims]
        if pod["metadata"]["name"] == "client":
            assert [(one["mountPath"], one.get("readOnly", False)) for one in mounts] == [("/shards", False)]
        elif pod["metadata"]["name"] == "aggregator":
            assert mounts == []
        elif pod["metadata"]["name"] == "serving":
            assert all(one["readOnly"] for one in mounts)


def test_a_gpu_is_asked_for_and_its_node_sought(render: Render, pods: Pods) -> None:
    (pod,) = pods(render("gpu"))
    (container,) = pod["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1 and container["image"].endswith("-cuda")
    assert pod["spec"]["nodeSelector"] == {"nvidia.com/gpu.present": "true"}
    assert [one["key"] for one in pod["spec"]["tolerations"]] == ["nvidia.com/gpu"]


def _first(pod: Document) -> Document:
    return containers(pod)[0]


CHANGES: dict[str, Callable[[Document], Any]] = {
    "root": lambda pod: pod["spec"]["securityContext"].update(runAsUser=0),
    "may be root": lambda pod: pod["spec"]["securityContext"].pop("runAsNonRoot"),
    "another group": lambda pod: pod["spec"]["securityContext"].pop("fsGroup"),
    "seccomp": lambda pod: pod["spec"]["securityContext"].pop("seccompProfile"),
    "seccomp of the container": lambda pod: _first(pod)["securityContext"].update(
        seccompProfile={"type": "Unconfined"}
    ),
    "root in the container": lambda pod: _first(pod)["securityContext"].update(runAsUser=0),
    "privileged": lambda pod: _first(pod)["securityContext"].update(privileged=True),
    "escalation": lambda pod: _first(pod)["securityContext"].pop("allowPrivilegeEscalation"),
    "writable root": lambda pod: _first(pod)["securityContext"].pop("readOnlyRootFilesystem"),
    "capabilities": lambda pod: _first(pod)["securityContext"]["capabilities"].update(add=["NET_RAW"]),
    "token": lambda pod: pod["spec"].pop("automountServiceAccountToken"),
    "host network": lambda pod: pod["spec"].update(hostNetwork=True),
    "host path": lambda pod: pod["spec"]["volumes"].append({"name": "host", "hostPath": {"path": "/"}}),
    "host port": lambda pod: _first(pod).setdefault("ports", []).append({"name": "h", "hostPort": 1}),
    "endless folder": lambda pod: pod["spec"]["volumes"].append({"name": "work", "emptyDir": {}}),
    "memory": lambda pod: _first(pod)["resources"]["limits"].pop("memory"),
    "more than all": lambda pod: _first(pod)["resources"]["requests"].update(memory="100Gi"),
    "disk": lambda pod: _first(pod)["resources"]["requests"].pop("ephemeral-storage"),
    "grace": lambda pod: pod["spec"].pop("terminationGracePeriodSeconds"),
    "links": lambda pod: pod["spec"].pop("enableServiceLinks"),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize(("place", "number"), [("demo", 0), ("demo", 1), ("demo", -1), ("production", 0), ("gpu", 0)])
def test_the_policy_catches_what_is_wrong(change: str, place: str, number: int, render: Render, pods: Pods) -> None:
    """In services, in init containers and in Jobs."""
    pod = pods(render(place))[number]
    assert problems(pod) == []
    CHANGES[change](pod)
    assert len(problems(pod)) == 1


@pytest.mark.parametrize("probe", PROBES)
def test_the_policy_misses_a_probe(probe: str, render: Render, pods: Pods) -> None:
    pod = pods(render("production"))[0]
    pod["spec"]["containers"][0].pop(probe)
    assert problems(pod) == [f"aggregator: no {probe}"]
