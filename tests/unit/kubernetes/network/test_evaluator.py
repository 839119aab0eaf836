"""The tests' own reading of NetworkPolicies, on policies small enough to see what must come out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Document, Reached

HERE = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}}}


def room(*policies: dict[str, Any]) -> list[Document]:
    """A namespace with one pod, `client-1`, and policies given as their specs."""
    documents: list[Document] = [{"kind": "Namespace", "metadata": {"name": "lpsfed-silo-1", "labels": {}}}]
    place = {"name": "client", "namespace": "lpsfed-silo-1", "labels": {"app.kubernetes.io/name": "client"}}
    documents.append({"kind": "Pod", "metadata": place, "spec": {}})
    for spec in policies:
        documents.append({"kind": "NetworkPolicy", "metadata": place, "spec": {"podSelector": {}} | spec})
    return documents


def into(**rule: Any) -> dict[str, Any]:
    return {"policyTypes": ["Ingress"], "ingress": [rule]}


def out(**rule: Any) -> dict[str, Any]:
    return {"policyTypes": ["Egress"], "egress": [rule]}


DENY = {"policyTypes": ["Ingress", "Egress"]}


@pytest.mark.parametrize(
    ("policies", "verdict"),
    [
        ((), True),
        ((DENY,), False),
        (({"policyTypes": ["Egress"]},), True),
        ((DENY, into()), True),
        (({"policyTypes": ["Ingress"], "ingress": []},), False),
        ((into(ports=[{"port": 80}]),), True),
        ((into(ports=[{"port": 81}]),), False),
        ((into(ports=[{"port": 80, "protocol": "UDP"}]),), False),
        ((into(ports=[{"protocol": "TCP"}]),), True),
        ((into(**{"from": [HERE]}),), True),
        ((into(**{"from": [{"podSelector": {}}]}),), False),
        ((into(**{"from": [HERE | {"podSelector": {"matchLabels": {"a": "b"}}}]}),), False),
        ((into(**{"from": [{"namespaceSelector": {}}]}),), True),
        ((into(**{"from": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}),), False),
        ((into(**{"from": [{"podSelector": {}}]}), into(**{"from": [HERE]})), True),
        ((DENY | {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "another"}}},), True),
    ],
)
def test_what_may_come_in(policies: tuple[dict[str, Any], ...], verdict: bool, reached: Reached) -> None:
    assert reached(room(*policies)).allows("stranger", "client-1", 80) is verdict


@pytest.mark.parametrize(
    ("policies", "verdict"),
    [
        ((), True),
        ((DENY,), False),
        ((into(),), True),
        ((out(to=[{"ipBlock": {"cidr": "198.51.100.0/24"}}]),), True),
        ((out(to=[{"ipBlock": {"cidr": "198.51.100.0/24", "except": ["198.51.100.7/32"]}}]),), False),
        ((out(to=[{"ipBlock": {"cidr": "203.0.113.0/24"}}]),), False),
        ((out(to=[{"namespaceSelector": {}}]),), False),
        ((DENY, out(ports=[{"port": 80}])), True),
    ],
)
def test_what_may_go_out(policies: tuple[dict[str, Any], ...], verdict: bool, reached: Reached) -> None:
    assert reached(room(*policies)).allows("client-1", "internet", 80) is verdict


def test_both_ends_have_a_say(reached: Reached) -> None:
    open_in = into()
    assert reached(room(open_in)).allows("app-1", "client-1", 80)
    assert not reached(room(open_in, {"policyTypes": ["Egress"]})).allows("app-1", "client-1", 80)
    assert not reached(room(DENY, out())).allows("app-1", "client-1", 80)
    assert reached(room(open_in, out())).allows("app-1", "client-1", 80)
