"""Overlays -> their documents, each rendered once by `kubectl kustomize`, and the pods in them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.questions import LONGEST_SECONDS

Document = dict[str, Any]
Render = Callable[[str], list[Document]]
Pods = Callable[[list[Document]], list[Document]]
Environment = Callable[[Document, list[Document]], dict[str, str]]

K8S = Path(__file__).parents[2] / "k8s"
MAKERS = ("Pod", "StatefulSet", "Deployment", "Job")
OVERLAYS = sorted(
    str(file.parent.relative_to(K8S / "overlays")) for file in (K8S / "overlays").rglob("kustomization.yaml")
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for `overlay` is held against every overlay there is, nested ones too."""
    if "overlay" in metafunc.fixturenames:
        metafunc.parametrize("overlay", OVERLAYS)


@cache
def kustomized(name: str) -> tuple[Document, ...]:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed: the manifests are not rendered")
    command = [kubectl, "kustomize", str(K8S / "overlays" / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_SECONDS)
    assert done.returncode == 0, done.stderr
    assert "deprecated" not in done.stderr
    return tuple(yaml.load_all(done.stdout, yaml.CSafeLoader))


@pytest.fixture(scope="session")
def render() -> Render:
    """The documents of an overlay by its name, each time new: a test may change them."""
    return lambda name: deepcopy(list(kustomized(name)))


@pytest.fixture
def documents(overlay: str, render: Render) -> list[Document]:
    return render(overlay)


@pytest.fixture(scope="session")
def pods() -> Pods:
    """The pods that documents lead to: `kind` is that of their maker, name and namespace too."""
    return lambda documents: [as_pod(one) for one in documents if one["kind"] in MAKERS]


def as_pod(document: Document) -> Document:
    made = document if document["kind"] == "Pod" else document["spec"]["template"]
    place = {name: document["metadata"][name] for name in ("name", "namespace")}
    return {"kind": document["kind"], "metadata": {**made["metadata"], **place}, "spec": made["spec"]}


@pytest.fixture(scope="session")
def environment() -> Environment:
    """What the kubelet would put into the environment of a pod's only container."""
    return container_environment


def container_environment(pod: Document, documents: list[Document]) -> dict[str, str]:
    """`envFrom` first, `env` over it; $(NAME) stands for an earlier name of `env`, and not for one of `envFrom`."""
    maps = {
        one["metadata"]["name"]: one["data"]
        for one in documents
        if one["kind"] == "ConfigMap" and one["metadata"]["namespace"] == pod["metadata"]["namespace"]
    }
    (container,) = pod["spec"]["containers"]
    own: dict[str, str] = {}
    for entry in container.get("env", []):
        own[entry["name"]] = value_of(entry, maps, own)
    from_maps = [maps[source["configMapRef"]["name"]] for source in container.get("envFrom", [])]
    return {name: value for one in (*from_maps, own) for name, value in one.items()}


def value_of(entry: Document, maps: Mapping[str, Mapping[str, str]], earlier: Mapping[str, str]) -> str:
    if "valueFrom" in entry:
        place = entry["valueFrom"]["configMapKeyRef"]
        return maps[place["name"]][place["key"]]
    return re.sub(r"\$\((\w+)\)", lambda found: earlier.get(found[1], found[0]), entry["value"])
