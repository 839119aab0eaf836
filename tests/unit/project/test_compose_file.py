"""The compose file as a text: confinement, networks, volumes and ports, without an engine."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import dataclass
from functools import cached_property
from ipaddress import collapse_addresses, ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from typer.testing import CliRunner

from aggregator_service.rounds.metrics import AggregatorMetrics
from aggregator_service.settings import AggregatorSettings
from audit.probes.expected import read_expected
from client_service.settings import ClientSettings
from shared.errors import SettingsError
from shared.protocol.signing.enrolment import FOLDER
from shared.protocol.signing.keys import read_public
from shared.protocol.signing.members import read_registry
from simulation.cli import app
from simulation.datasets.chain import generate_chain
from simulation.deployment.certificates import write_files
from simulation.deployment.compose import MAIN, MOST_SILOS, POOL_SILOS, USER, compose_files, write_compose
from simulation.deployment.compose_secrets import make_certificate, make_secrets
from simulation.partitioning.partition import partition_shops
from simulation.partitioning.sources import number_silos

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Composed:
    """A compose file for so many silos, read."""

    silos: int
    text: str

    @cached_property
    def file(self) -> dict[str, Any]:
        return dict(yaml.safe_load(self.text))

    @property
    def services(self) -> dict[str, dict[str, Any]]:
        return dict(self.file["services"])

    @property
    def ours(self) -> dict[str, dict[str, Any]]:
        return {name: one for name, one in self.services.items() if one["image"].startswith("lpsfed/")}

    @property
    def numbers(self) -> tuple[str, ...]:
        return number_silos(self.silos)

    def networks(self, name: str) -> set[str]:
        return set(self.services[name].get("networks", ()))

    def mounts(self, name: str) -> dict[str, str]:
        """Volume or path -> where and how it is mounted."""
        return dict(volume.split(":", 1) for volume in self.services[name].get("volumes", ()) if "$" not in volume)

    def holders(self, volume: str) -> set[str]:
        """Who has a volume, itself or by having all that another has."""
        own = {name for name in self.services if volume in self.mounts(name)}
        lent = {
            name
            for name, one in self.services.items()
            for source in one.get("volumes_from", ())
            if source.split(":")[0] in own
        }
        return own | lent

    def internal(self, network: str) -> bool:
        return bool((self.file["networks"][network] or {}).get("internal"))


@pytest.fixture(scope="module", params=[1, 4, POOL_SILOS, 12, MOST_SILOS], ids="{} silos".format)
def silos(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def composed(silos: int) -> Composed:
    return Composed(silos, compose_files(silos)[Path(MAIN)])


def test_the_files_that_are_checked_in_are_what_the_command_writes_for_four_silos() -> None:
    files = compose_files(4)
    assert len(files) == 3
    for path, text in files.items():
        assert (ROOT / path).read_text(encoding="utf-8") == text, f"{path}: `lpsfed compose` writes it anew"


@pytest.mark.parametrize("silos", [-1, 0, MOST_SILOS + 1])
def test_a_number_of_silos_that_is_out_of_range_is_refused(silos: int) -> None:
    with pytest.raises(SettingsError, match=f"expected 1 to {MOST_SILOS}, .*, got {silos}"):
        compose_files(silos)


def test_the_command_writes_into_the_folder_in_which_it_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["compose", "--silos", "6"]).exit_code == 0
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        str(path): text for path, text in compose_files(6).items()
    }
    refused = CliRunner().invoke(app, ["compose", "--silos", "33"])
    assert isinstance(refused.exception, SettingsError) and "got 33" in str(refused.exception)


def test_an_engine_s_own_address_pools_hold_all_networks() -> None:
    """15 of 172.17.0.0/12 and 16 of 192.168.0.0/16, less the engine's own."""
    networks = [yaml.safe_load(compose_files(silos)[Path(MAIN)])["networks"] for silos in (1, POOL_SILOS)]
    assert [len(one) for one in networks] == [7, 28] and len(networks[-1]) <= 30
    assert [name for one in networks for name in one if "ipam" in one[name]] == []


@pytest.mark.parametrize(("silos", "subnets"), [(POOL_SILOS + 1, None), (MOST_SILOS, None), (4, "192.168.64.0/20")])
def test_networks_beyond_the_pools_have_subnets_of_their_own(silos: int, subnets: str | None) -> None:
    networks = yaml.safe_load(compose_files(silos, subnets=subnets)[Path(MAIN)])["networks"]
    stated = [ip_network(one["ipam"]["config"][0]["subnet"]) for one in networks.values()]
    assert len(stated) == 3 * silos + 4 and sum(one.num_addresses for one in stated) == len(stated) * 16
    assert len(list(collapse_addresses(stated))) < len(stated) == len(set(stated))
    assert all(one.subnet_of(ip_network(subnets or "10.201.0.0/16")) for one in stated)


@pytest.mark.parametrize(
    "subnets", ["10.201.0.0/25", "10.201.0.0/30", "8.8.0.0/16", "fd00::/48", "10.201.0.1/16", "here"]
)
def test_a_range_of_addresses_that_is_of_no_use_is_refused(subnets: str) -> None:
    with pytest.raises(SettingsError, match=f"--subnets: expected .*, got {subnets}"):
        compose_files(9, subnets=subnets)


def test_the_files_beside_the_main_one_are_called_after_it(tmp_path: Path) -> None:
    paths = write_compose(2, tmp_path / "two.yml")
    assert [path.name for path in paths] == ["two.yml", "two.gpu.yml", "two.start-interval.yml"]
    assert sorted(tmp_path.iterdir()) == sorted(paths)
    with pytest.raises(SettingsError, match="expected a place for a file"):
        write_compose(2, tmp_path / "two.yml" / "there.yml")


def test_the_user_of_the_last_screen_is_one_of_client_1_s() -> None:
    for silos in range(1, MOST_SILOS + 1):
        chain = generate_chain(0, silos)
        first = partition_shops(chain.dataset, chain.shops).parts[0]
        assert USER in first.users and first.name == f"client-{number_silos(silos)[0]}"
        assert f"/v1/users/{USER}/" in compose_files(silos)[Path(MAIN)]


def test_the_common_basis_is_switched_on_at_both_sides_where_there_are_silos_enough_to_mask_it(
    composed: Composed,
) -> None:
    kind, secure = ("exact", "true") if composed.silos >= 3 else ("off", "false")
    aggregator = composed.services["aggregator"]["environment"]
    assert aggregator["LPSFED_AGGREGATOR_METHOD__BASIS__KIND"] == f"${{LPSFED_COMMON_BASIS:-{kind}}}"
    assert aggregator["LPSFED_AGGREGATOR_SECURE"] == f"${{LPSFED_SECURE:-{secure}}}"
    for number in composed.numbers:
        client = composed.services[f"client-{number}"]["environment"]
        assert client["LPSFED_CLIENT_METHOD__BASIS__KIND"] == f"${{LPSFED_COMMON_BASIS:-{kind}}}"
        assert client["LPSFED_CLIENT_SECURE"] == f"${{LPSFED_SECURE:-{secure}}}"
        assert client["LPSFED_CLIENT_POLICY__COMMON_BASIS"] == "secure"
    assert "LPSFED_COMMON_BASIS:-off" in compose_files(4, basis="off")[Path(MAIN)]
    assert ClientSettings.model_fields["policy"].default.common_basis == "no"
    assert AggregatorSettings.model_fields["method"].default.basis.kind == "off"


def test_whoever_is_told_how_many_silos_there_are_is_told_the_same(composed: Composed) -> None:
    for name in ("partition", "run"):
        command = composed.services[name]["command"]
        assert command[command.index("--clients") + 1] == str(composed.silos)
    assert composed.services["secrets"]["command"] == [f"client-{number}" for number in composed.numbers]
    evidence = [f"/evidence-{number}" for number in composed.numbers]
    assert composed.services["report"]["command"][2:] == ["/evidence", *evidence]
    assert {*evidence} <= {place.removesuffix(":ro") for place in composed.mounts("report").values()}


def test_every_gateway_has_a_port_of_its_own(composed: Composed) -> None:
    ports = {name: one["ports"] for name, one in composed.services.items() if name.startswith("gateway")}
    silos = {f"gateway-{number}": [f"127.0.0.1:{8800 + int(number)}:8800"] for number in composed.numbers}
    assert ports == {"gateway": ["127.0.0.1:8800:8800"]} | silos


def test_every_service_of_ours_is_confined(composed: Composed) -> None:
    for name, service in composed.ours.items():
        assert service["user"] == "10001:10001" and service["read_only"] and service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert service["mem_limit"] and service["pids_limit"] and service["cpus"], name


def test_no_service_has_the_engine_s_socket_or_more_rights(composed: Composed) -> None:
    for name, service in composed.services.items():
        assert "docker.sock" not in json.dumps(service), name
        assert not {"privileged", "cap_add", "devices", "ipc", "userns_mode"} & set(service), name
        assert service.get("network_mode", "none") != "host", name
        assert service.get("pid") == (service["network_mode"] if name.startswith("probe-") else None), name
        assert service["cap_drop"] == ["ALL"] and service["read_only"], name


def test_no_image_of_ours_is_taken_from_a_registry(composed: Composed) -> None:
    built = {service["image"] for service in composed.ours.values() if "build" in service}
    for name, service in composed.ours.items():
        assert service["pull_policy"] == "never" and service["image"] in built, name


def test_ports_are_published_on_loopback_alone(composed: Composed) -> None:
    for name, service in composed.services.items():
        assert all(str(port).startswith("127.0.0.1:") for port in service.get("ports", ())), name


def test_no_two_clients_share_a_network_and_only_the_aggregator_shares_one_with_each(composed: Composed) -> None:
    for number in composed.numbers:
        assert composed.networks(f"client-{number}") == {f"link-{number}", f"door-{number}"}
        for network in composed.networks(f"client-{number}"):
            assert composed.internal(network)
            members = {name for name in composed.services if network in composed.networks(name)}
            other = "aggregator" if network.startswith("link") else f"gateway-{number}"
            assert members == {f"client-{number}", other}


def test_the_aggregator_has_no_way_out(composed: Composed) -> None:
    assert all(composed.internal(network) for network in composed.networks("aggregator"))


def test_a_network_with_a_way_to_the_machine_holds_one_gateway_and_hides_no_address(composed: Composed) -> None:
    for network in (name for name in composed.file["networks"] if not composed.internal(name)):
        members = [name for name in composed.services if network in composed.networks(name)]
        assert len(members) == 1 and (members[0].startswith("gateway") or members[0] == "grafana")
        masquerade = {"com.docker.network.bridge.enable_ip_masquerade": "false"}
        assert composed.file["networks"][network]["driver_opts"] == masquerade


def test_a_shard_is_mounted_by_its_client_alone_which_refreshes_and_erases_there(composed: Composed) -> None:
    for number in composed.numbers:
        own = {f"client-{number}", f"probe-client-{number}"}
        assert composed.holders(f"shard-{number}") == own | {"partition"}
        assert composed.mounts(f"client-{number}")[f"shard-{number}"] == "/shard"
        assert composed.holders(f"secret-{number}") == own | {"secrets"} and composed.holders(f"state-{number}") == own
        settings = composed.services[f"client-{number}"]["environment"]
        assert settings["LPSFED_CLIENT_SIGNING_KEY_FILE"].endswith(f"{number}.key")
        assert composed.holders(f"evidence-{number}") == {f"probe-client-{number}", f"probe-gateway-{number}", "report"}
        assert composed.services[f"probe-client-{number}"]["volumes_from"] == [f"client-{number}:ro"]
    assert not any(volume.startswith("shard") for volume in composed.mounts("aggregator"))


def test_the_aggregator_sees_public_keys_and_no_private_one(composed: Composed) -> None:
    assert composed.mounts("aggregator")["keys"] == "/keys:ro"
    assert composed.holders("keys") == {"secrets", "aggregator", "probe-aggregator"}
    assert composed.services["aggregator"]["environment"]["LPSFED_AGGREGATOR_KEYS_DIRECTORY"] == "/keys"
    volumes = {"state-aggregator", "secret-operator", "secret-aggregator", "keys", "public"}
    assert set(composed.mounts("aggregator")) == volumes


def test_client_and_aggregator_speak_tls_and_nobody_else_has_the_aggregator_s_key(composed: Composed) -> None:
    """Whether the run is secure or not: one way, tried by every `up`."""
    here = composed.services["aggregator"]["environment"]
    assert here["LPSFED_AGGREGATOR_TLS_KEY"] == "/identity/tls.key"
    assert composed.mounts("aggregator")["secret-aggregator"] == "/identity:ro"
    assert composed.holders("secret-aggregator") == {"secrets", "aggregator", "probe-aggregator"}
    for number in composed.numbers:
        client = composed.services[f"client-{number}"]["environment"]
        assert client["LPSFED_CLIENT_AGGREGATOR_URL"] == "https://aggregator:8800"
        assert client["LPSFED_CLIENT_AGGREGATOR_AUTHORITY"] == "/public/authority.crt"
        assert client["LPSFED_CLIENT_MEMBERS"] == "/public/members.toml"
    plain = {name for name, one in composed.services.items() if "http://aggregator" in json.dumps(one)}
    assert plain == set() and composed.services["gateway"]["command"][2] == "/public/authority.crt"
    readers = composed.holders("public") - {"secrets", "partition"}
    assert all(composed.mounts(name).get("public", "/public:ro") == "/public:ro" for name in readers)


def test_every_key_is_made_once_in_the_folder_of_whoever_needs_it(composed: Composed, tmp_path: Path) -> None:
    assert composed.services["secrets"]["entrypoint"] == ["python", "-m", "simulation.deployment.compose_secrets"]
    made: list[dict[str, bytes]] = []
    for _ in range(2):
        make_secrets(composed.services["secrets"]["command"], tmp_path)
        files = [one for one in tmp_path.rglob("*") if one.is_file() and one.parent.name != FOLDER]
        made.append({str(one.relative_to(tmp_path)): one.read_bytes() for one in files})
    pairs = [
        f"handed-over/client-{number}/client-{number}.{half}" for number in composed.numbers for half in ("key", "pub")
    ]
    public = [f"keys/client-{number}.pub" for number in composed.numbers]
    own = [f"handed-over/aggregator/{name}" for name in ("tls.crt", "tls.key", "aggregator.key", "aggregator.pub")]
    public += ["public/authority.crt", "public/members.toml"]
    assert made[0] == made[1] and set(made[0]) == {"handed-over/operator/token", *pairs, *public, *own}
    members = read_registry(tmp_path / "public/members.toml")
    assert set(members.clients) == {f"client-{number}" for number in composed.numbers}
    assert members.aggregator == read_public(tmp_path / own[3])


def expand(words: str) -> list[str]:
    """Words of a shell's loop, as it takes them."""
    done = subprocess.run(["sh", "-c", f"printf '%s ' {words}"], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_no_container_takes_a_new_volume_away_from_the_user_who_fills_it(composed: Composed) -> None:
    """Compose 2 creates all containers before it starts one, and each gives an empty volume what its image has at the
    place that the volume covers: its owner, and folders that other volumes are meant to cover."""
    text = (ROOT / "client_service" / "Dockerfile").read_text(encoding="utf-8")
    (loop,) = re.findall(r"for part in ([^;]+);", text)
    of_all = set(re.findall(r"/(?:keys|public|audit/\w+)\b", text))
    folders = of_all | {f"/{above}/{part}" for above in ("handed-over", "shards") for part in expand(loop)}
    for name, one in composed.ours.items():
        for where in composed.mounts(name).values():
            place = where.partition(":")[0]
            above = [folder for folder in folders if folder.startswith(f"{place}/")]
            assert one["image"].startswith("lpsfed/tools") is False or not above, f"{name} mounts {place} above {above}"
    made = {place.partition(":")[0] for name in ("secrets", "partition") for place in composed.mounts(name).values()}
    assert made <= folders


def test_a_start_that_was_cut_off_between_two_files_is_made_good(tmp_path: Path) -> None:
    own, public = tmp_path / "own", tmp_path / "public"
    write_files(own, {"tls.crt": b"half of it"})
    make_certificate(own, public)
    root = x509.load_pem_x509_certificate((public / "authority.crt").read_bytes())
    signed = x509.load_pem_x509_certificate((own / "tls.crt").read_bytes())
    signed.verify_directly_issued_by(root)


def test_every_part_that_serves_has_a_probe_in_its_place_with_its_mounts(composed: Composed) -> None:
    serving = {name for name in composed.services if re.fullmatch(r"aggregator|client-\d+|gateway(-\d+)?", name)}
    for name in serving:
        probe = composed.services[f"probe-{name}"]
        assert probe["network_mode"] == probe["pid"] == f"service:{name}"
        assert probe["init"] is False and probe["environment"]["LPSFED_PROBE_PROCESS"] == "1"
        assert probe["volumes_from"] == [f"{name}:ro"]
        assert f"probe-{name}" in composed.services["report"]["depends_on"]
    expected = composed.services["probe-aggregator"]["environment"]["LPSFED_PROBE_EXPECT"].split(",")
    assert set(expected) == serving


def test_what_its_probe_expects_of_a_part_is_what_it_is_given(composed: Composed) -> None:
    for name in composed.services["probe-aggregator"]["environment"]["LPSFED_PROBE_EXPECT"].split(","):
        role = name.partition("-")[0]
        expected = read_expected(role, "compose", name)
        written = {place for place in composed.mounts(name).values() if not place.endswith(":ro")}
        written |= {place.partition(":")[0] for place in composed.services[name]["tmpfs"]}
        read = {place.removesuffix(":ro") for place in composed.mounts(name).values() if place.endswith(":ro")}
        assert written <= set(expected.write) <= {"/shard", "/state", "/tmp"} and read <= set(expected.read), name
        assert role == "gateway" or (read, written) == (set(expected.read), set(expected.write)), name


def test_nothing_logs_requests_beneath_the_end_of_up(composed: Composed) -> None:
    levels = {
        name: value
        for name, one in composed.services.items()
        for key, value in one.get("environment", {}).items()
        if key.endswith("_LOG_LEVEL")
    }
    ours = dict.fromkeys(("aggregator", *(f"client-{number}" for number in composed.numbers)))
    assert levels == dict.fromkeys(ours, "${LPSFED_LOG_LEVEL:-warning}") | {"grafana": "warn"}
    assert "--log.level=warn" in composed.services["prometheus"]["command"]


def test_every_setting_that_it_gives_is_one(composed: Composed) -> None:
    for name, service in composed.ours.items():
        for prefix, settings in (("LPSFED_CLIENT_", ClientSettings), ("LPSFED_AGGREGATOR_", AggregatorSettings)):
            given = [
                key.removeprefix(prefix).lower().partition("__")[0]
                for key in service.get("environment", {})
                if key.startswith(prefix)
            ]
            assert set(given) <= set(settings.model_fields), name


def test_prometheus_asks_the_aggregator_alone_and_the_dashboard_only_for_series_that_exist(composed: Composed) -> None:
    scraped = yaml.safe_load((ROOT / "observability/prometheus.yml").read_text())["scrape_configs"]
    assert [target for job in scraped for one in job["static_configs"] for target in one["targets"]] == [
        "aggregator:8800"
    ]
    assert not any(
        name.startswith(("link", "door-")) for name in composed.networks("prometheus") | composed.networks("grafana")
    )
    dashboard = json.loads((ROOT / "observability/grafana/dashboards/federation.json").read_text())
    asked = {
        word
        for panel in dashboard["panels"]
        for target in panel["targets"]
        for word in re.findall(r"lpsfed_\w+", target["expr"])
    }
    described = re.findall(r"^# TYPE (\w+) (\w+)", AggregatorMetrics().text().decode(), flags=re.M)
    series = {f"{name}{suffix}" for name, kind in described for suffix in _suffixes(kind)}
    assert len(asked) > 8 and asked <= series


def _suffixes(kind: str) -> tuple[str, ...]:
    return {"histogram": ("_bucket", "_sum", "_count"), "counter": ("",)}.get(kind, ("",))


def test_nothing_waits_for_a_health_check_and_none_starts_a_program_of_ours(composed: Composed) -> None:
    """A busy machine answers late: `up` would end before the part had begun."""
    for name, service in composed.services.items():
        assert "service_healthy" not in json.dumps(service.get("depends_on", {})), name
        assert service.get("healthcheck", {"disable": True}) == {"disable": True}, name
        # A relay has its image's check, which is the aggregator's.
        inherited = service["image"].startswith("lpsfed/aggregator") and name != "aggregator"
        assert ("healthcheck" in service) == inherited, name


def test_whoever_waits_in_it_waits_long(composed: Composed) -> None:
    run, probe = (
        composed.services["run"]["command"],
        composed.services[f"probe-client-{composed.numbers[0]}"]["environment"],
    )
    assert float(run[run.index("--wait-seconds") + 1]) >= 1800
    assert float(run[run.index("--deadline-seconds") + 1]) >= 3600
    assert float(probe["LPSFED_PROBE_MEET_SECONDS"]) >= 600


def test_a_machine_with_one_core_is_enough(composed: Composed) -> None:
    cores = [service["cpus"] for service in composed.services.values()]
    assert all(0 < number <= 1.0 for number in cores), "an engine refuses more than the machine has"


def test_the_file_for_newer_engines_adds_a_start_interval_to_each_health_check_and_nothing_else(silos: int) -> None:
    added = yaml.safe_load(compose_files(silos)[Path("docker-compose.start-interval.yml")])["services"]
    assert set(added) == {"aggregator", *(f"client-{number}" for number in number_silos(silos))}
    assert all(service == {"healthcheck": {"start_interval": "2s"}} for service in added.values())


def test_the_file_for_a_gpu_tells_the_clients_probes_of_it(silos: int) -> None:
    added = yaml.safe_load(compose_files(silos)[Path("docker-compose.gpu.yml")])["services"]
    expected = {name: one["environment"]["LPSFED_PROBE_EXPECTED"] for name, one in added.items() if "probe" in name}
    numbers = number_silos(silos)
    assert expected == {f"probe-client-{number}": "compose,gpu" for number in numbers}
    assert set(added) == {*expected, *(f"client-{number}" for number in numbers)}
