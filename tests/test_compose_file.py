"""The compose file as a text: confinement, networks, volumes and ports, without an engine."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509

from aggregator_service.rounds.metrics import Metrics
from aggregator_service.settings import AggregatorSettings
from audit.probes.expected import read_expected
from client_service.settings import ClientSettings
from shared.protocol.signing.keys import read_public
from shared.protocol.signing.registry import read_registry
from simulation.certificates import write
from simulation.compose_secrets import make_certificate, make_secrets

ROOT = Path(__file__).parents[1]
FILE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
OURS = {name: one for name, one in SERVICES.items() if one["image"].startswith("lpsfed/")}
NUMBERS = range(1, 5)


def networks(name: str) -> set[str]:
    return set(SERVICES[name].get("networks", ()))


def mounts(name: str) -> dict[str, str]:
    """Volume or path -> where and how it is mounted."""
    return dict(volume.split(":", 1) for volume in SERVICES[name].get("volumes", ()) if "$" not in volume)


def holders(volume: str) -> set[str]:
    """Who has a volume, itself or by having all that another has."""
    own = {name for name in SERVICES if volume in mounts(name)}
    lent = {
        name for name, one in SERVICES.items() for source in one.get("volumes_from", ()) if source.split(":")[0] in own
    }
    return own | lent


def internal(network: str) -> bool:
    return bool((FILE["networks"][network] or {}).get("internal"))


@pytest.mark.parametrize("name", OURS)
def test_every_service_of_ours_is_confined(name: str) -> None:
    service = OURS[name]
    assert service["user"] == "10001:10001" and service["read_only"] and service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["mem_limit"] and service["pids_limit"] and service["cpus"]


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_has_the_engine_s_socket_or_more_rights(name: str) -> None:
    service = SERVICES[name]
    assert "docker.sock" not in json.dumps(service)
    assert not {"privileged", "cap_add", "devices", "ipc", "userns_mode"} & set(service)
    assert service.get("network_mode", "none") != "host"
    assert service.get("pid") == (service["network_mode"] if name.startswith("probe-") else None)
    assert service["cap_drop"] == ["ALL"] and service["read_only"]


@pytest.mark.parametrize("name", OURS)
def test_no_image_of_ours_is_taken_from_a_registry(name: str) -> None:
    built = {one["image"] for one in OURS.values() if "build" in one}
    assert OURS[name]["pull_policy"] == "never" and OURS[name]["image"] in built


@pytest.mark.parametrize("name", SERVICES)
def test_ports_are_published_on_loopback_alone(name: str) -> None:
    assert all(str(port).startswith("127.0.0.1:") for port in SERVICES[name].get("ports", ()))


def test_no_two_clients_share_a_network_and_only_the_aggregator_shares_one_with_each() -> None:
    for number in NUMBERS:
        assert networks(f"client-{number}") == {f"link-{number}", f"door-{number}"}
        for network in networks(f"client-{number}"):
            assert internal(network)
            members = {name for name in SERVICES if network in networks(name)}
            other = "aggregator" if network.startswith("link") else f"gateway-{number}"
            assert members == {f"client-{number}", other}


def test_the_aggregator_has_no_way_out() -> None:
    assert all(internal(network) for network in networks("aggregator"))


def test_a_network_with_a_way_to_the_machine_holds_one_gateway_and_hides_no_address() -> None:
    for network in (name for name in FILE["networks"] if not internal(name)):
        members = [name for name in SERVICES if network in networks(name)]
        assert len(members) == 1 and (members[0].startswith("gateway") or members[0] == "grafana")
        assert FILE["networks"][network]["driver_opts"] == {"com.docker.network.bridge.enable_ip_masquerade": "false"}


def test_a_shard_is_mounted_by_its_client_alone_and_read_only() -> None:
    for number in NUMBERS:
        own = {f"client-{number}", f"probe-client-{number}"}
        assert holders(f"shard-{number}") == own | {"partition"}
        assert mounts(f"client-{number}")[f"shard-{number}"].endswith(":ro")
        assert holders(f"secret-{number}") == own | {"secrets"} and holders(f"state-{number}") == own
        assert SERVICES[f"client-{number}"]["environment"]["LPSFED_CLIENT_SIGNING_KEY_FILE"].endswith(f"{number}.key")
        assert holders(f"evidence-{number}") == {f"probe-client-{number}", f"probe-gateway-{number}", "report"}
        assert SERVICES[f"probe-client-{number}"]["volumes_from"] == [f"client-{number}:ro"]
    assert not any(volume.startswith("shard") for volume in mounts("aggregator"))


def test_the_aggregator_sees_public_keys_and_no_private_one() -> None:
    assert mounts("aggregator")["keys"] == "/keys:ro" and holders("keys") == {
        "secrets",
        "aggregator",
        "probe-aggregator",
    }
    assert SERVICES["aggregator"]["environment"]["LPSFED_AGGREGATOR_KEYS_DIRECTORY"] == "/keys"
    assert set(mounts("aggregator")) == {"state-aggregator", "secret-operator", "secret-aggregator", "keys", "public"}


def test_client_and_aggregator_speak_tls_and_nobody_else_has_the_aggregator_s_key() -> None:
    """Whether the run is secure or not: one way, tried by every `up`."""
    here = SERVICES["aggregator"]["environment"]
    assert here["LPSFED_AGGREGATOR_TLS_KEY"] == "/identity/tls.key"
    assert mounts("aggregator")["secret-aggregator"] == "/identity:ro"
    assert holders("secret-aggregator") == {"secrets", "aggregator", "probe-aggregator"}
    for number in NUMBERS:
        client = SERVICES[f"client-{number}"]["environment"]
        assert client["LPSFED_CLIENT_AGGREGATOR_URL"] == "https://aggregator:8800"
        assert client["LPSFED_CLIENT_AGGREGATOR_AUTHORITY"] == "/public/authority.crt"
        assert client["LPSFED_CLIENT_MEMBERS"] == "/public/members.toml"
    plain = {name for name, one in SERVICES.items() if "http://aggregator" in json.dumps(one)}
    assert plain == set() and SERVICES["gateway"]["command"][2] == "/public/authority.crt"
    assert all(mounts(name).get("public", "/public:ro") == "/public:ro" for name in holders("public") - {"secrets"})


def test_every_key_is_made_once_in_the_folder_of_whoever_needs_it(tmp_path: Path) -> None:
    assert SERVICES["secrets"]["entrypoint"] == ["python", "-m", "simulation.compose_secrets"]
    made: list[dict[str, bytes]] = []
    for _ in range(2):
        make_secrets(SERVICES["secrets"]["command"], tmp_path)
        made.append({str(one.relative_to(tmp_path)): one.read_bytes() for one in tmp_path.rglob("*") if one.is_file()})
    pairs = [f"handed-over/client-{number}/client-{number}.{half}" for number in NUMBERS for half in ("key", "pub")]
    public = [f"keys/client-{number}.pub" for number in NUMBERS]
    own = [f"handed-over/aggregator/{name}" for name in ("tls.crt", "tls.key", "aggregator.key", "aggregator.pub")]
    public += ["public/authority.crt", "public/members.toml"]
    assert made[0] == made[1] and set(made[0]) == {"handed-over/operator/token", *pairs, *public, *own}
    members = read_registry(tmp_path / "public/members.toml")
    assert set(members.clients) == {f"client-{number}" for number in NUMBERS}
    assert members.aggregator == read_public(tmp_path / own[3])


def test_no_container_takes_a_new_volume_away_from_the_user_who_fills_it() -> None:
    """Compose 2 creates all containers before it starts one, and each gives an empty volume what its image has at the
    place that the volume covers: its owner, and folders that other volumes are meant to cover."""
    text = (ROOT / "client_service" / "Dockerfile").read_text(encoding="utf-8")
    (loop,) = re.findall(r"for part in ([^;]+);", text)
    of_all = set(re.findall(r"/(?:keys|public|audit/\w+)\b", text))
    folders = of_all | {f"/{above}/{part}" for above in ("handed-over", "shards") for part in loop.split()}
    for name, one in OURS.items():
        for where in mounts(name).values():
            place = where.partition(":")[0]
            above = [folder for folder in folders if folder.startswith(f"{place}/")]
            assert one["image"].startswith("lpsfed/tools") is False or not above, f"{name} mounts {place} above {above}"
    made = {place.partition(":")[0] for name in ("secrets", "partition") for place in mounts(name).values()}
    assert made <= folders


def test_a_start_that_was_cut_off_between_two_files_is_made_good(tmp_path: Path) -> None:
    own, public = tmp_path / "own", tmp_path / "public"
    write(own, {"tls.crt": b"half of it"})
    make_certificate(own, public)
    root = x509.load_pem_x509_certificate((public / "authority.crt").read_bytes())
    signed = x509.load_pem_x509_certificate((own / "tls.crt").read_bytes())
    signed.verify_directly_issued_by(root)


def test_every_part_that_serves_has_a_probe_in_its_place_with_its_mounts() -> None:
    serving = {name for name in SERVICES if re.fullmatch(r"aggregator|client-\d|gateway(-\d)?", name)}
    for name in serving:
        probe = SERVICES[f"probe-{name}"]
        assert probe["network_mode"] == probe["pid"] == f"service:{name}"
        assert probe["init"] is False and probe["environment"]["LPSFED_PROBE_PROCESS"] == "1"
        assert probe["volumes_from"] == [f"{name}:ro"]
        assert f"probe-{name}" in SERVICES["report"]["depends_on"]
    expected = SERVICES["probe-aggregator"]["environment"]["LPSFED_PROBE_EXPECT"].split(",")
    assert set(expected) == serving


@pytest.mark.parametrize("name", ["aggregator", "gateway", "gateway-1", "client-1", "client-2", "client-3", "client-4"])
def test_what_its_probe_expects_of_a_part_is_what_it_is_given(name: str) -> None:
    role = name.partition("-")[0]
    expected = read_expected(role, "compose", name)
    written = {place for place in mounts(name).values() if not place.endswith(":ro")}
    written |= {place.partition(":")[0] for place in SERVICES[name]["tmpfs"]}
    read = {place.removesuffix(":ro") for place in mounts(name).values() if place.endswith(":ro")}
    assert written <= set(expected.write) <= {"/state", "/tmp"} and read <= set(expected.read)
    assert role == "gateway" or (read, written) == (set(expected.read), set(expected.write))


def test_every_setting_that_it_gives_is_one() -> None:
    for name, service in OURS.items():
        for prefix, settings in (("LPSFED_CLIENT_", ClientSettings), ("LPSFED_AGGREGATOR_", AggregatorSettings)):
            given = [
                key.removeprefix(prefix).lower() for key in service.get("environment", {}) if key.startswith(prefix)
            ]
            assert set(given) <= set(settings.model_fields), name


def test_prometheus_asks_the_aggregator_alone_and_the_dashboard_only_for_series_that_exist() -> None:
    scraped = yaml.safe_load((ROOT / "observability/prometheus.yml").read_text())["scrape_configs"]
    assert [target for job in scraped for one in job["static_configs"] for target in one["targets"]] == [
        "aggregator:8800"
    ]
    assert not any(name.startswith(("link", "door-")) for name in networks("prometheus") | networks("grafana"))
    dashboard = json.loads((ROOT / "observability/grafana/dashboards/federation.json").read_text())
    asked = {
        word
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for word in re.findall(r"lpsfed_\w+", target["expr"])
    }
    described = re.findall(r"^# TYPE (\w+) (\w+)", Metrics().text().decode(), flags=re.M)
    series = {f"{name}{suffix}" for name, kind in described for suffix in _suffixes(kind)}
    assert len(asked) > 8 and asked <= series


def _suffixes(kind: str) -> tuple[str, ...]:
    return {"histogram": ("_bucket", "_sum", "_count"), "counter": ("",)}.get(kind, ("",))


@pytest.mark.parametrize("name", SERVICES)
def test_nothing_waits_for_a_health_check_and_none_starts_a_program_of_ours(name: str) -> None:
    """A busy machine answers late: `up` would end before the part had begun."""
    waits = SERVICES[name].get("depends_on", {})
    assert "service_healthy" not in json.dumps(waits)
    assert SERVICES[name].get("healthcheck", {"disable": True}) == {"disable": True}
    inherited = SERVICES[name]["image"].startswith("lpsfed/aggregator") and name != "aggregator"
    assert ("healthcheck" in SERVICES[name]) == inherited, "a relay has its image's check, which is the aggregator's"


def test_whoever_waits_in_it_waits_long() -> None:
    run, probe = SERVICES["run"]["command"], SERVICES["probe-client-1"]["environment"]
    assert float(run[run.index("--wait-seconds") + 1]) >= 1800
    assert float(run[run.index("--deadline-seconds") + 1]) >= 3600
    assert float(probe["LPSFED_PROBE_MEET_SECONDS"]) >= 600


@pytest.mark.parametrize("name", SERVICES)
def test_a_machine_with_one_core_is_enough(name: str) -> None:
    assert 0 < SERVICES[name]["cpus"] <= 1.0, "an engine refuses more than the machine has"


def test_the_file_for_newer_engines_adds_a_start_interval_to_each_health_check_and_nothing_else() -> None:
    added = yaml.safe_load((ROOT / "docker-compose.start-interval.yml").read_text())["services"]
    assert set(added) == {"aggregator", *(f"client-{number}" for number in NUMBERS)}
    assert all(one == {"healthcheck": {"start_interval": "2s"}} for one in added.values())


def test_the_file_for_a_gpu_tells_the_clients_probes_of_it() -> None:
    added = yaml.safe_load((ROOT / "docker-compose.gpu.yml").read_text())["services"]
    told = {name: one["environment"]["LPSFED_PROBE_EXPECTED"] for name, one in added.items() if "probe" in name}
    assert told == {f"probe-client-{number}": "compose,gpu" for number in NUMBERS}
