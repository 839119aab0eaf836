"""What a probe expects of a container in Kubernetes is what the manifests give it, in every overlay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from audit.evidence.evidence import Role
from audit.probes.expected import read_expected

if TYPE_CHECKING:
    from conftest import Document, Pods

ROLES: dict[str, Role] = {"aggregator": "aggregator", "client": "client"}
KUBELET_S = {"/dev/termination-log", "/etc/hosts"}  # in every container, and writable


def test_every_mount_of_a_service_is_expected_and_written_only_where_it_should_be(
    overlay: str, documents: list[Document], pods: Pods
) -> None:
    services = [pod for pod in pods(documents) if pod["kind"] == "StatefulSet"]
    assert services or overlay.endswith(("load-shard", "workers"))
    for pod in services:
        expected = read_expected(ROLES[pod["metadata"]["name"]], "kubernetes", "client-1")
        (container,) = pod["spec"]["containers"]
        for mount in container["volumeMounts"]:
            wanted = expected.read if mount.get("readOnly") else expected.write
            assert mount["mountPath"] in wanted, (pod["metadata"]["name"], mount)
        assert set(expected.write) >= KUBELET_S
