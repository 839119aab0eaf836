"""NetworkPolicies -> who may speak to whom, worked out as Kubernetes defines it."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

Document = dict[str, Any]
Reached = Callable[[list[Document]], "Cluster"]

NAME = "kubernetes.io/metadata.name"  # the API server writes it on every namespace
APP = "app.kubernetes.io/name"
ASKS = "lpsfed.org/asks"
STRANGERS = {  # pods that others run: namespace and labels
    "dns": ("kube-system", {"k8s-app": "kube-dns"}),
    "system": ("kube-system", {}),
    "prometheus": ("monitoring", {APP: "prometheus"}),
    "beside-prometheus": ("monitoring", {}),
    "traefik": ("traefik", {APP: "traefik"}),
    "stranger": ("default", {}),
    "pretender": ("default", {APP: "client", ASKS: "true"}),
}
OUTSIDE = {"internet": "198.51.100.7", "elsewhere": "203.0.113.10"}


@dataclass(frozen=True)
class Place:
    """A pod, or with `address` alone a machine outside of the cluster."""

    namespace: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    around: dict[str, str] = field(default_factory=dict)  # labels of the namespace
    address: str = ""


@dataclass(frozen=True)
class Cluster:
    """Policies, and a place for each name that the tables of the tests use."""

    policies: list[Document]
    places: dict[str, Place]

    def allows(self, source: str, target: str, port: int, protocol: str = "TCP") -> bool:
        """Both ends have a say."""
        return self.lets_out(source, target, port, protocol) and self.lets_in(source, target, port, protocol)

    def lets_out(self, source: str, target: str, port: int, protocol: str = "TCP") -> bool:
        """The say of the end that sends."""
        return permits(self.policies, "Egress", self.places[source], self.places[target], (protocol, port))

    def lets_in(self, source: str, target: str, port: int, protocol: str = "TCP") -> bool:
        """The say of the end that is spoken to."""
        return permits(self.policies, "Ingress", self.places[target], self.places[source], (protocol, port))


def permits(policies: list[Document], direction: str, own: Place, other: Place, port: tuple[str, int]) -> bool:
    """What no policy selects is open, an address outside too; a pod that some select may do what any lets it."""
    key, peers = ("ingress", "from") if direction == "Ingress" else ("egress", "to")
    selecting = [
        policy["spec"]
        for policy in policies
        if own.address == ""
        and policy["metadata"]["namespace"] == own.namespace
        and direction in policy["spec"]["policyTypes"]
        and matches(policy["spec"]["podSelector"], own.labels)
    ]
    rules = [rule for spec in selecting for rule in spec.get(key) or ()]
    return not selecting or any(lets(rule, peers, other, own.namespace, port) for rule in rules)


def lets(rule: Document, peers: str, other: Place, own_namespace: str, port: tuple[str, int]) -> bool:
    """Peers and ports that are left out, or empty, stand for all."""
    ports = [(one.get("protocol", "TCP"), one.get("port")) for one in rule.get("ports", [])]
    right = not ports or port in ports or (port[0], None) in ports
    return right and (not rule.get(peers) or any(is_peer(peer, other, own_namespace) for peer in rule[peers]))


def is_peer(peer: Document, other: Place, own_namespace: str) -> bool:
    if "ipBlock" in peer:
        block = peer["ipBlock"]
        return within(other, block["cidr"]) and not any(within(other, net) for net in block.get("except", []))
    around = peer.get("namespaceSelector")
    near = other.namespace == own_namespace if around is None else matches(around, other.around)
    return other.address == "" and near and matches(peer.get("podSelector", {}), other.labels)


def within(other: Place, network: str) -> bool:
    """A pod's own address is nobody's business: blocks are for machines outside."""
    return other.address != "" and ipaddress.ip_address(other.address) in ipaddress.ip_network(network)


def matches(selector: Document, labels: dict[str, str]) -> bool:
    """An empty selector matches everything."""
    assert set(selector) <= {"matchLabels"}, "no policy of ours needs more"
    return bool(selector.get("matchLabels", {}).items() <= labels.items())


@pytest.fixture(scope="session")
def reached(pods: Callable[[list[Document]], list[Document]]) -> Reached:
    """The cluster that documents make: `aggregator`, `operator`, `client-1`; an `app-` and an `other-` in each room."""

    def build(documents: list[Document]) -> Cluster:
        around = {one["metadata"]["name"]: one["metadata"]["labels"] for one in documents if one["kind"] == "Namespace"}
        places = {name: Place(address=address) for name, address in OUTSIDE.items()}
        places |= {name: Place(room, labels, {NAME: room}) for name, (room, labels) in STRANGERS.items()}
        for pod in pods(documents):
            room, labels = pod["metadata"]["namespace"], pod["metadata"]["labels"]
            here, short = {**around[room], NAME: room}, room.removeprefix("lpsfed-").removeprefix("silo-")
            places[f"client-{short}" if labels[APP] == "client" else labels[APP]] = Place(room, labels, here)
            places[f"app-{short}"] = Place(room, {ASKS: "true"}, here)
            places[f"other-{short}"] = Place(room, {}, here)
        return Cluster([one for one in documents if one["kind"] == "NetworkPolicy"], places)

    return build
