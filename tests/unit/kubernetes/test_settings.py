"""The manifests' environment -> the services' own settings: each key is one, each port the one that is listened on."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
import yaml
from pydantic import TypeAdapter
from pydantic_settings import BaseSettings

from aggregator_service.settings import AggregatorSettings, aggregator_settings
from client_service.settings import ClientSettings, client_settings
from tests.support.questions import LONGEST_SECONDS

if TYPE_CHECKING:
    from conftest import Document, Environment, Pods, Render

SETTINGS: dict[str, type[BaseSettings]] = {"aggregator": AggregatorSettings, "client": ClientSettings}
WRITABLE = {"/state", "/tmp"}
CLAIMED = {"shard": "/shards", "keys": "/keys"}  # a refresh writes a shard, an enrolment a key
SAID = ("tls", "production", "common-basis")  # between them, all that the bases say
MADE_AT_THE_START = {"LPSFED_AGGREGATOR_SIGNING_KEY_FILE"}  # where nobody sets it, in the volume with the state
SAID_BY_A_NUMBER = {"LPSFED_AGGREGATOR_CATALOGUE_SIZE_FILE"}  # METHOD__CATALOGUE, known before the first shard is there
SWITCHED_ON = {"SECURE": ("true", "false"), "METHOD__BASIS__KIND": ("exact", "off")}  # by compose; and as it is without
OF_A_POD = {"name", "aggregator_url", "device"}
K8S = Path(__file__).parents[3] / "k8s"
COMPOSE = Path(__file__).parents[3] / "docker-compose.yml"
CHOICE = re.compile(r"\$\{LPSFED_\w+:-(.*)\}")  # of whoever types `docker compose up`, and what it is without one


def services(documents: list[Document], pods: Pods) -> list[Document]:
    kinds = ("StatefulSet", "Deployment")
    return [
        one for one in pods(documents) if one["kind"] in kinds and one["metadata"]["name"] in ("aggregator", "client")
    ]


def prefix(pod: Document) -> str:
    return f"LPSFED_{pod['metadata']['name'].upper()}_"


def test_every_key_is_a_setting_of_its_service(documents: list[Document], pods: Pods, environment: Environment) -> None:
    """The services pass over what they do not know: a slip of the pen would be without effect."""
    for pod in services(documents, pods):
        known = {prefix(pod) + name.upper() for name in SETTINGS[pod["metadata"]["name"]].model_fields}
        given = {name.partition("__")[0] for name in environment(pod, documents)}
        assert given and {name for name in given - known if not name.startswith("AWS_")} == set()  # of the bucket


def composed() -> dict[str, dict[str, str]]:
    """By service, what docker-compose.yml gives it; all its clients are given the same settings."""
    described = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]
    clients = [one["environment"] for name, one in described.items() if re.fullmatch(r"client-\d", name)]
    assert len(clients) > 1 and len({frozenset(one) for one in clients}) == 1
    return {"aggregator": described["aggregator"]["environment"], "client": clients[0]}


def chosen(given: dict[str, str]) -> dict[str, str]:
    """Of what compose gives a service, the settings that its user can choose, with their defaults."""
    found = {name: CHOICE.fullmatch(value) for name, value in given.items()}
    return {name: choice[1] for name, choice in found.items() if choice}


def test_what_compose_lets_its_user_choose_stands_in_every_config_map_with_the_same_default(
    documents: list[Document], overlay: str, pods: Pods, environment: Environment
) -> None:
    """But for what compose switches on to show it, and for the overlays that are there to choose otherwise."""
    choices = {name: chosen(given) for name, given in composed().items()}
    assert all(choices.values())
    for pod in services(documents, pods):
        given, expected = environment(pod, documents), dict(choices[pod["metadata"]["name"]])
        on = {"secure": 1, "common-basis": 2}.get(overlay, 0)
        for place, (name, (shown, without)) in enumerate(SWITCHED_ON.items()):
            assert expected.pop(prefix(pod) + name) == shown
            assert given.get(prefix(pod) + name) == (shown if place < on else without)
        # compose shows its end on a terminal, where lines of requests would scroll it away; a cluster keeps logs apart
        assert (expected.pop(prefix(pod) + "LOG_LEVEL"), given[prefix(pod) + "LOG_LEVEL"]) == ("warning", "info")
        assert {name: given.get(name) for name in expected} == expected


def test_whatever_compose_gives_a_service_the_demo_or_production_gives_it(
    render: Render, pods: Pods, environment: Environment
) -> None:
    for name, given in composed().items():
        made = [(pod, documents) for documents in map(render, SAID) for pod in services(documents, pods)]
        found = [environment(pod, documents) for pod, documents in made if pod["metadata"]["name"] == name]
        assert set(given) - MADE_AT_THE_START - SAID_BY_A_NUMBER <= set().union(*found)


def test_what_a_config_map_spells_out_is_the_setting_s_default(render: Render) -> None:
    """But for what says where a pod is. Who reads the base reads what an overlay may change, and from what."""
    for one in (one for one in render("demo") if one["kind"] == "ConfigMap"):
        name = one["metadata"]["name"].partition("-")[0]
        fields, start = SETTINGS[name].model_fields, f"LPSFED_{name.upper()}_"
        for key, value in one["data"].items():
            field, *path = key.removeprefix(start).lower().split("__")
            kind: TypeAdapter[object] = TypeAdapter(fields[field].annotation)
            read = (
                kind.validate_json(value) if value.startswith(("{", "[")) else kind.validate_python(nested(path, value))
            )
            assert field in OF_A_POD or read == fields[field].default, key


def nested(path: list[str], value: str) -> object:
    """("a", "b"), value -> {"a": {"b": value}}, as the settings read a name with two underscores."""
    for name in reversed(path):
        value = {name: value}  # type: ignore[assignment]
    return value


def test_every_config_map_is_read_by_its_service(documents: list[Document], pods: Pods) -> None:
    read = {
        (pod["metadata"]["namespace"], source["configMapRef"]["name"])
        for pod in services(documents, pods)
        for source in pod["spec"]["containers"][0]["envFrom"]
    }
    maps = [one["metadata"] for one in documents if one["kind"] == "ConfigMap"]
    assert {(one["namespace"], one["name"]) for one in maps} == read


def found_keys(given: dict[str, str], folder: Path) -> dict[str, Path]:
    """The files of the API's keys that the manifest names, elsewhere: where it names none it must be a demo."""
    names = [f"{name}_key_file" for name in ("application", "operator")]
    return {name: folder / name.split("_")[0] for name in names if f"LPSFED_CLIENT_{name.upper()}" in given}


def test_the_environment_makes_settings(
    documents: list[Document],
    pods: Pods,
    environment: Environment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for pod in services(documents, pods):
        with monkeypatch.context() as patched:
            for name in [name for name in os.environ if name.startswith("LPSFED_")]:
                patched.delenv(name)
            for name, value in environment(pod, documents).items():
                patched.setenv(name, value)
            if "LPSFED_CLIENT_CATALOGUE" in environment(pod, documents):
                (tmp_path / "catalogue.txt").write_text("item-1\nitem-2\n", encoding="utf-8")
                patched.setenv("LPSFED_CLIENT_CATALOGUE", str(tmp_path / "catalogue.txt"))
            if "LPSFED_AGGREGATOR_DATABASE_FILE" in environment(pod, documents):
                (tmp_path / "url").write_text("postgresql://lpsfed:secret@lpsfed-rw/lpsfed", encoding="utf-8")
                patched.setenv("LPSFED_AGGREGATOR_DATABASE_FILE", str(tmp_path / "url"))
            for name in ("token", "application", "operator"):
                (tmp_path / name).write_text(f"{name} of the tests, 0123456789".replace(" ", "-"), encoding="utf-8")
            if pod["metadata"]["name"] == "aggregator":
                made: AggregatorSettings | ClientSettings = aggregator_settings(operator_token_file=tmp_path / "token")
            else:
                made = client_settings(**found_keys(environment(pod, documents), tmp_path))
            assert made.host == "0.0.0.0" and made.state_directory == Path("/state")


def test_a_client_is_named_as_its_shard_s_folder(
    documents: list[Document], pods: Pods, environment: Environment
) -> None:
    """The folder lies in a volume mounted at /shards; the name is said once."""
    for pod in services(documents, pods):
        if pod["metadata"]["name"] == "client":
            given = environment(pod, documents)
            assert given["LPSFED_CLIENT_SHARD"] == f"/shards/{given['LPSFED_CLIENT_NAME']}"


def test_names_of_clients_differ(documents: list[Document], pods: Pods, environment: Environment) -> None:
    clients = [pod for pod in services(documents, pods) if pod["metadata"]["name"] == "client"]
    names = [environment(pod, documents)["LPSFED_CLIENT_NAME"] for pod in clients]
    assert len(set(names)) == len(names)


def test_paths_lie_in_what_is_mounted(documents: list[Document], pods: Pods, environment: Environment) -> None:
    """With a read-only root anything else could not be written, or would not be there."""
    for pod in services(documents, pods):
        mounts = {one["mountPath"]: one.get("readOnly", False) for one in pod["spec"]["containers"][0]["volumeMounts"]}
        claims = {one["name"] for one in pod["spec"]["volumes"] if "persistentVolumeClaim" in one}
        own = WRITABLE | {CLAIMED[name] for name in claims & CLAIMED.keys()}
        assert {path for path, read_only in mounts.items() if not read_only} == own
        given = environment(pod, documents)
        for path in [Path(value) for value in given.values() if value.startswith("/")]:
            assert {str(one) for one in (path, *path.parents)} & set(mounts), path


def test_the_port_is_the_one_that_the_service_listens_on(
    documents: list[Document], pods: Pods, environment: Environment
) -> None:
    for pod in services(documents, pods):
        name = pod["metadata"]["name"]
        listens = int(
            environment(pod, documents).get(prefix(pod) + "PORT", SETTINGS[name].model_fields["port"].default)
        )
        (port,) = pod["spec"]["containers"][0]["ports"]
        assert port["containerPort"] == listens
        for service in (one for one in documents if one["kind"] == "Service"):
            if service["spec"]["selector"]["app.kubernetes.io/name"] == name:
                assert [(one["port"], one["targetPort"]) for one in service["spec"]["ports"]] == [
                    (listens, port["name"])
                ]


def test_clients_in_the_same_cluster_call_the_aggregator_s_service(
    documents: list[Document], pods: Pods, environment: Environment
) -> None:
    """And a silo elsewhere calls by TLS; in the same cluster whoever calls does as the aggregator's port."""
    ports = [
        environment(pod, documents) for pod in services(documents, pods) if pod["metadata"]["name"] == "aggregator"
    ]
    scheme = "https" if any("LPSFED_AGGREGATOR_TLS_CERTIFICATE" in given for given in ports) else "http"
    addresses = {
        f"{scheme}://{one['metadata']['name']}.{one['metadata']['namespace']}.svc:{one['spec']['ports'][0]['port']}"
        for one in documents
        if one["kind"] == "Service" and one["metadata"]["name"] == "aggregator"
    }
    for pod in services(documents, pods):
        url = environment(pod, documents).get("LPSFED_CLIENT_AGGREGATOR_URL")
        local = not addresses or url in addresses
        assert url is None or (url.startswith("https://") and scheme == "http") or local, url
    for job in (pod for pod in pods(documents) if pod["metadata"]["name"] == "operator"):
        arguments = job["spec"]["containers"][0]["args"]
        assert {f"--aggregator-url={address}" for address in addresses} <= set(arguments)


def test_a_pod_without_dns_knows_the_one_name_that_it_calls(
    documents: list[Document], pods: Pods, environment: Environment
) -> None:
    """At the address that its policy lets it reach, or that the aggregator's Service has been given."""
    fixed = {one["spec"].get("clusterIP") for one in documents if one["kind"] == "Service"}
    blocks = {
        peer["ipBlock"]["cidr"].removesuffix("/32")
        for one in documents
        if one["kind"] == "NetworkPolicy"
        for rule in one["spec"].get("egress", [])
        for peer in rule["to"]
        if "ipBlock" in peer
    }
    for pod in (pod for pod in pods(documents) if pod["spec"].get("dnsPolicy") == "None"):
        if pod["metadata"]["name"] == "serving":  # it calls nobody
            assert "hostAliases" not in pod["spec"]
            continue
        (alias,) = pod["spec"]["hostAliases"]
        arguments = [word.partition("=")[2] for word in pod["spec"]["containers"][0].get("args", [])]
        urls = [environment(pod, documents).get("LPSFED_CLIENT_AGGREGATOR_URL"), *arguments]
        assert [urlsplit(url).hostname for url in urls if url and "://" in url] == alias["hostnames"]
        assert alias["ip"] in fixed | blocks


@pytest.mark.parametrize("overlay_without_dns", ["no-dns", "production", "gpu", "serving"])
def test_dns_is_closed_where_it_is_said_to_be(overlay_without_dns: str, render: Render, pods: Pods) -> None:
    callers = [pod for pod in pods(render(overlay_without_dns)) if pod["metadata"]["name"] in ("client", "operator")]
    assert callers and {pod["spec"].get("dnsPolicy") for pod in callers} == {"None"}


def test_a_marked_line_that_an_operator_uncomments_is_a_setting_of_the_client() -> None:
    text = (K8S / "overlays/production/silo/kustomization.yaml").read_text(encoding="utf-8")
    marked = re.findall(r"# - LPSFED_CLIENT_([A-Z_]+)=(\S+) # <-", text)
    assert marked == [("ALLOWED_ORIGINS", '["https://shop.example.org"]')]
    for name, value in marked:
        kind: TypeAdapter[object] = TypeAdapter(ClientSettings.model_fields[name.lower()].annotation)
        assert kind.validate_json(value)


def test_a_silo_behind_a_proxy_reaches_the_proxy_alone(tmp_path: Path) -> None:
    """The production silo with its marked line for that uncommented."""
    if (kubectl := shutil.which("kubectl")) is None:
        pytest.skip("kubectl is not installed: the manifests are not rendered")
    shutil.copytree(K8S, tmp_path / "k8s")
    overlay = tmp_path / "k8s/overlays/production/silo"
    file = overlay / "kustomization.yaml"
    file.write_text(
        file.read_text(encoding="utf-8").replace(
            "# - ../../../components/outbound-proxy", "- ../../../components/outbound-proxy"
        )
    )
    done = subprocess.run([kubectl, "kustomize", str(overlay)], capture_output=True, text=True, timeout=LONGEST_SECONDS)
    assert done.returncode == 0, done.stderr
    found = {(one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(done.stdout)}
    egress = found["NetworkPolicy", "to-aggregator"]["spec"]["egress"]
    assert egress == [{"to": [{"ipBlock": {"cidr": "203.0.113.10/32"}}], "ports": [{"protocol": "TCP", "port": 3128}]}]
    container = found["StatefulSet", "client"]["spec"]["template"]["spec"]["containers"][0]
    given = {one["name"]: one.get("value") for one in container["env"]}
    path = Path(given["LPSFED_CLIENT_OUTBOUND_PROXY_FILE"])
    assert "outbound_proxy_file" in ClientSettings.model_fields
    assert str(path.parent) in {one["mountPath"] for one in container["volumeMounts"]}
