"""cert-manager's example: who is asked for, for which names, and that the services get what it makes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
import yaml

if TYPE_CHECKING:
    from conftest import Document, Environment, Pods, Render

AUTHORITY = Path(__file__).parents[3] / "k8s" / "authority.yaml"
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")
PARTS = ("AGGREGATOR", "CLIENT")
MADE = {"tls.crt", "tls.key", "ca.crt"}  # what cert-manager puts into a Secret


@pytest.fixture(params=["tls", "secure", "common-basis"])
def secured(render: Render, request: pytest.FixtureRequest) -> list[Document]:
    return render(request.param)


def certificates(documents: list[Document]) -> dict[tuple[str, str], dict[str, Any]]:
    """(namespace, Secret) -> what is asked for."""
    found = [one for one in documents if one["kind"] == "Certificate"]
    return {(one["metadata"]["namespace"], one["spec"]["secretName"]): one["spec"] for one in found}


def test_the_authority_is_the_one_that_every_certificate_is_asked_of(secured: list[Document]) -> None:
    held = list(yaml.safe_load_all(AUTHORITY.read_text(encoding="utf-8")))
    issuers = {one["metadata"]["name"]: one["spec"] for one in held if one["kind"] == "ClusterIssuer"}
    (own,) = (one for one in held if one["kind"] == "Certificate")
    assert own["metadata"]["namespace"] == "cert-manager" and own["spec"]["isCA"] is True
    assert issuers[own["spec"]["issuerRef"]["name"]] == {"selfSigned": {}}
    asked = {spec["issuerRef"]["name"] for spec in certificates(secured).values()}
    assert [issuers[name] for name in asked] == [{"ca": {"secretName": own["spec"]["secretName"]}}]


def test_each_service_mounts_its_own_certificate_and_asks_and_answers_by_it(
    secured: list[Document], pods: Pods, environment: Environment
) -> None:
    made, services = certificates(secured), [pod for pod in pods(secured) if pod["kind"] == "StatefulSet"]
    assert len(services) == len(made) == 5
    for pod in services:
        (container,) = pod["spec"]["containers"]
        mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
        (volume,) = (one for one in pod["spec"]["volumes"] if one["name"] == "tls")
        assert (pod["metadata"]["namespace"], volume["secret"]["secretName"]) in made
        given = environment(pod, secured)
        paths = {Path(value) for value in given.values() if Path(value).is_relative_to(mounts["tls"]["mountPath"])}
        assert {path.name for path in paths} <= MADE and mounts["tls"]["readOnly"]
        own = f"LPSFED_{pod['metadata']['name'].upper()}_"
        assert Path(given[f"{own}TLS_CERTIFICATE"]).name == "tls.crt" and Path(given[f"{own}TLS_KEY"]).name == "tls.key"
        assert {container[probe]["httpGet"]["scheme"] for probe in PROBES} == {"HTTPS"}
        assert f"{own}TLS_CLIENT_AUTHORITY" not in given  # a kubelet shows no certificate


def test_whoever_calls_the_aggregator_believes_the_authority_and_the_name_is_on_the_certificate(
    secured: list[Document], pods: Pods, environment: Environment
) -> None:
    names = certificates(secured)["lpsfed-aggregator", "aggregator-certificate"]["dnsNames"]
    clients = [pod for pod in pods(secured) if pod["metadata"]["name"] == "client"]
    (job,) = (pod for pod in pods(secured) if pod["metadata"]["name"] == "operator")
    said = dict(word.split("=", 1) for word in job["spec"]["containers"][0]["args"] if "=" in word)
    given = [environment(pod, secured) for pod in clients]
    urls = [said["--aggregator-url"], *(one["LPSFED_CLIENT_AGGREGATOR_URL"] for one in given)]
    assert {urlsplit(url).scheme for url in urls} == {"https"} and {urlsplit(url).hostname for url in urls} <= set(
        names
    )
    believed = {said["--ca"], *(one["LPSFED_CLIENT_AGGREGATOR_AUTHORITY"] for one in given)}
    assert {Path(path).name for path in believed} == {"ca.crt"}


def test_a_certificate_serves_both_ways_and_is_renewed_before_it_ends(secured: list[Document]) -> None:
    for spec in certificates(secured).values():
        assert {"server auth", "client auth"} <= set(spec["usages"])
        assert spec["privateKey"]["rotationPolicy"] == "Always"
        # More than the days at which a service begins to warn.
        assert int(spec["duration"].rstrip("h")) > int(spec["renewBefore"].rstrip("h")) > 14 * 24


def test_whoever_is_secure_calls_by_tls(overlay: str, render: Render, pods: Pods, environment: Environment) -> None:
    """A masked update over a plain connection would show whoever is on the way who takes part, and in what."""
    documents = render(overlay)
    given = [environment(pod, documents) for pod in pods(documents) if pod["kind"] == "StatefulSet"]
    secure = [one for one in given if "true" in (one.get(f"LPSFED_{part}_SECURE") for part in PARTS)]
    assert len(secure) == (5 if overlay in ("secure", "common-basis") else 0)
    for one in secure:
        url = one.get("LPSFED_CLIENT_AGGREGATOR_URL", "https:")
        assert url.startswith("https:") and ("LPSFED_AGGREGATOR_TLS_KEY" in one or "LPSFED_CLIENT_MEMBERS" in one)


def test_production_asks_for_the_certificate_that_its_ingress_shows(render: Render) -> None:
    documents = render("production")
    (ingress,) = (one["spec"] for one in documents if one["kind"] == "Ingress")
    asked = certificates(documents)
    for tls in ingress["tls"]:
        assert set(tls["hosts"]) <= set(asked["lpsfed-aggregator", tls["secretName"]]["dnsNames"])


def test_the_demo_itself_is_as_before(render: Render, pods: Pods) -> None:
    for pod in pods(render("demo")):
        assert "tls" not in {volume["name"] for volume in pod["spec"]["volumes"]}
