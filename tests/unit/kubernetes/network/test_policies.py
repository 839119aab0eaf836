"""What our NetworkPolicies promise: pair by pair what is open and what is not, and that every policy is needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Cluster, Document, Reached, Render

Connection = tuple[str, str, int, str]

OPEN: list[Connection] = [
    ("client-1", "aggregator", 8800, "TCP"),
    ("client-4", "aggregator", 8800, "TCP"),
    ("client-1", "dns", 53, "UDP"),
    ("client-1", "dns", 53, "TCP"),
    ("operator", "aggregator", 8800, "TCP"),
    ("operator", "dns", 53, "UDP"),
    ("operator", "dns", 53, "TCP"),
    ("app-1", "client-1", 8801, "TCP"),
]
KEPT_IN: list[Connection] = [  # by the policies of the one that sends
    ("client-1", "client-2", 8801, "TCP"),
    ("client-1", "aggregator", 8801, "TCP"),
    ("client-1", "aggregator", 8800, "UDP"),
    ("client-1", "aggregator", 22, "TCP"),
    ("client-1", "operator", 8800, "TCP"),
    ("client-1", "other-aggregator", 8800, "TCP"),
    ("client-1", "internet", 443, "TCP"),
    ("client-1", "internet", 53, "UDP"),
    ("client-1", "dns", 443, "TCP"),
    ("client-1", "system", 53, "UDP"),
    ("client-1", "stranger", 8800, "TCP"),
    ("client-1", "app-1", 80, "TCP"),
    ("aggregator", "client-1", 8801, "TCP"),
    ("aggregator", "internet", 443, "TCP"),
    ("aggregator", "dns", 53, "UDP"),
    ("aggregator", "operator", 80, "TCP"),
    ("operator", "client-1", 8801, "TCP"),
    ("operator", "internet", 443, "TCP"),
    ("app-1", "client-2", 8801, "TCP"),
    ("app-1", "aggregator", 8800, "TCP"),
    ("app-1", "client-1", 22, "TCP"),
    ("app-1", "internet", 443, "TCP"),
    ("other-1", "client-1", 8801, "TCP"),
    ("other-1", "internet", 443, "TCP"),
]
KEPT_OUT: list[Connection] = [  # by the policies of the one that is spoken to
    ("client-1", "client-2", 8801, "TCP"),
    ("app-1", "client-2", 8801, "TCP"),
    ("other-1", "client-1", 8801, "TCP"),
    ("stranger", "client-1", 8801, "TCP"),
    ("pretender", "client-1", 8801, "TCP"),
    ("prometheus", "client-1", 8801, "TCP"),
    ("internet", "client-1", 8801, "TCP"),
    ("aggregator", "client-1", 8801, "TCP"),
    ("client-1", "aggregator", 22, "TCP"),
    ("app-1", "aggregator", 8800, "TCP"),
    ("other-1", "aggregator", 8800, "TCP"),
    ("other-aggregator", "aggregator", 8800, "TCP"),
    ("stranger", "aggregator", 8800, "TCP"),
    ("pretender", "aggregator", 8800, "TCP"),
    ("prometheus", "aggregator", 8800, "TCP"),
    ("internet", "aggregator", 8800, "TCP"),
    ("client-1", "operator", 8800, "TCP"),
    ("stranger", "other-1", 80, "TCP"),
]


@pytest.fixture(scope="session")
def demo(render: Render, reached: Reached) -> Cluster:
    return reached(render("demo"))


def test_every_namespace_denies_both_ways_by_default(documents: list[Document]) -> None:
    everything = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    policies = [one for one in documents if one["kind"] == "NetworkPolicy"]
    denied = {one["metadata"]["namespace"] for one in policies if one["spec"] == everything}
    assert denied == {one["metadata"]["name"] for one in documents if one["kind"] == "Namespace"}


@pytest.mark.parametrize("way", OPEN, ids=str)
def test_what_the_demo_needs_is_open(way: Connection, demo: Cluster) -> None:
    assert demo.allows(*way)


@pytest.mark.parametrize("way", KEPT_IN, ids=str)
def test_all_else_is_kept_in_whatever_the_other_end_says(way: Connection, demo: Cluster) -> None:
    assert not demo.lets_out(*way)


@pytest.mark.parametrize("way", KEPT_OUT, ids=str)
def test_all_else_is_kept_out_whatever_the_other_end_says(way: Connection, demo: Cluster) -> None:
    assert not demo.lets_in(*way)


def test_nobody_speaks_to_anybody_on_another_port(demo: Cluster) -> None:
    """Every pair of places at every port that matters: open is exactly what stands in the table, for each silo."""
    ours = [name for name in demo.places if name.startswith(("client-", "aggregator", "operator"))]
    ports = [(port, protocol) for port in (22, 53, 80, 443, 8800, 8801) for protocol in ("TCP", "UDP")]
    found = {
        (source, target, *port)
        for source in ours
        for target in demo.places
        for port in ports
        if source != target and demo.lets_out(source, target, *port)
    }
    senders = ("operator", *(f"client-{silo}" for silo in (1, 2, 3, 4)))
    names = {(sender, "dns", 53, protocol) for sender in senders for protocol in ("TCP", "UDP")}
    assert found == names | {(sender, "aggregator", 8800, "TCP") for sender in senders}


def test_without_dns_only_the_aggregator_is_left(render: Render, reached: Reached) -> None:
    closed = reached(render("no-dns"))
    assert [way for way in OPEN if not closed.allows(*way)] == [way for way in OPEN if way[1] == "dns"]
    assert not any(closed.allows(*way) for way in (*KEPT_IN, *KEPT_OUT))


def test_a_silo_elsewhere_reaches_one_address_and_nothing_else(render: Render, reached: Reached) -> None:
    for overlay in ("production", "gpu", "serving"):
        silo = reached(render(overlay))
        reachable = {
            (target, port, protocol)
            for target in silo.places
            for port in (53, 80, 443, 8800)
            for protocol in ("TCP", "UDP")
            if target != "client-north" and silo.lets_out("client-north", target, port, protocol)
        }
        assert reachable == {("elsewhere", 443, "TCP")}
        assert silo.allows("app-north", "client-north", 8801) and not silo.allows("other-north", "client-north", 8801)


def test_a_replica_hears_its_silo_s_applications_and_reaches_nobody(render: Render, reached: Reached) -> None:
    """Not the aggregator, not the client, not even names: who breaks into one has no way out with the data."""
    plain, counted = reached(render("serving")), reached(render("serving-requests"))
    ports = [(port, protocol) for port in (22, 53, 80, 443, 8800, 8801, 8811) for protocol in ("TCP", "UDP")]
    for silo in (plain, counted):
        others = [name for name in silo.places if name != "serving"]
        assert not [(one, *port) for one in others for port in ports if silo.lets_out("serving", one, *port)]
        assert silo.allows("app-north", "serving", 8811) and not silo.allows("app-north", "serving", 8801)
        assert silo.allows("app-north", "client-north", 8801) and not silo.allows("app-north", "client-north", 8811)
        strangers = ("other-north", "client-north", "stranger", "pretender", "internet", "beside-prometheus")
        assert not any(silo.lets_in(one, "serving", 8811) for one in strangers)
    assert counted.allows("prometheus", "serving", 8811) and not plain.lets_in("prometheus", "serving", 8811)
    assert not counted.lets_in("prometheus", "client-north", 8801)


@pytest.mark.parametrize("name", ["default-deny", "from-applications-to-serving", "applications-to-serving"])
def test_every_policy_of_replicas_is_needed(name: str, render: Render, reached: Reached) -> None:
    documents = render("serving")
    documents.remove(policy(documents, "lpsfed-silo-north", name))
    found = reached(documents)
    open_now = found.allows("app-north", "serving", 8811)
    assert (open_now, found.lets_out("serving", "internet", 443)) != (True, False)


def test_the_aggregator_in_production_hears_the_ingress_controller(render: Render, reached: Reached) -> None:
    plain, monitored = reached(render("production")), reached(render("monitoring"))
    for place in (plain, monitored):
        assert place.allows("traefik", "aggregator", 8800) and not place.allows("traefik", "aggregator", 80)
        assert not any(place.allows(one, "aggregator", 8800) for one in ("stranger", "pretender", "internet"))
        assert not any(place.allows("aggregator", one, 443) for one in ("traefik", "internet", "prometheus"))
    assert monitored.allows("prometheus", "aggregator", 8800) and not plain.allows("prometheus", "aggregator", 8800)
    assert not monitored.allows("beside-prometheus", "aggregator", 8800)


def verdicts(cluster: Cluster) -> list[bool]:
    """All of the three tables."""
    sent, heard = (cluster.lets_out(*way) for way in KEPT_IN), (cluster.lets_in(*way) for way in KEPT_OUT)
    return [*(cluster.allows(*way) for way in OPEN), *sent, *heard]


def policy(documents: list[Document], namespace: str, name: str) -> Document:
    kind = [one for one in documents if one["kind"] == "NetworkPolicy" and one["metadata"]["name"] == name]
    (found,) = (one for one in kind if one["metadata"]["namespace"] == namespace)
    return found


POLICIES = {
    "lpsfed-aggregator": ("default-deny", "from-clients", "from-operator", "operator-to-aggregator", "to-dns"),
    "lpsfed-silo-1": ("default-deny", "from-applications", "applications-to-client", "to-aggregator", "to-dns"),
}


@pytest.mark.parametrize(("room", "name"), [(room, name) for room, names in POLICIES.items() for name in names])
def test_the_tables_miss_every_policy(room: str, name: str, demo: Cluster, render: Render, reached: Reached) -> None:
    documents = render("demo")
    documents.remove(policy(documents, room, name))
    assert verdicts(reached(documents)) != verdicts(demo)


WIDER: dict[str, tuple[str, str, Callable[[Document], Any]]] = {
    "any port": ("lpsfed-silo-1", "to-aggregator", lambda spec: spec["egress"][0].pop("ports")),
    "any pod there": ("lpsfed-silo-1", "to-dns", lambda spec: spec["egress"][0]["to"][0].pop("podSelector")),
    "anybody": ("lpsfed-silo-1", "from-applications", lambda spec: spec["ingress"][0].pop("from")),
    "any namespace": (
        "lpsfed-aggregator",
        "from-clients",
        lambda spec: spec["ingress"][0]["from"][0].update(namespaceSelector={}),
    ),
    "any pod": ("lpsfed-aggregator", "from-clients", lambda spec: spec["ingress"][0]["from"][0].pop("podSelector")),
    "one way only": ("lpsfed-aggregator", "default-deny", lambda spec: spec.update(policyTypes=["Ingress"])),
}


@pytest.mark.parametrize("change", WIDER)
def test_the_tables_catch_a_policy_that_is_too_wide(
    change: str, demo: Cluster, render: Render, reached: Reached
) -> None:
    room, name, widen = WIDER[change]
    documents = render("demo")
    widen(policy(documents, room, name)["spec"])
    assert verdicts(reached(documents)) != verdicts(demo)
