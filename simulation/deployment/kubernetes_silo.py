"""Kubernetes manifests of one silo that has joined, for a cluster without the aggregator."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from shared.errors import SettingsError
from shared.files import PRIVATE, PUBLIC, replace_file

if TYPE_CHECKING:
    from client_service.settings import ClientSettings

KUSTOMIZATION, SCRIPT = "kustomization.yaml", "apply.sh"
TEMPLATES = {KUSTOMIZATION: "kubernetes-silo.yml", SCRIPT: "kubernetes-silo.sh"}
START_SECONDS = 300
MOUNTED_CATALOGUE = "/shards/catalogue.txt"  # beside the shard, where the script puts it
FORBIDDEN_CHARACTERS = set("\"'`$\\\n")  # in a path that stands in the script


@dataclass(frozen=True)
class SiloCluster:
    """Cluster of one silo.

    manifests: the project's k8s/. address: of the aggregator, the only one that the client can reach. image: of the
    client, by the name that the cluster's nodes pull; None: as it is built here.
    """

    manifests: Path
    address: str
    image: str | None = None


def write_kubernetes_silo(settings: ClientSettings, cluster: SiloCluster, out: Path) -> Path:
    """Writes the kustomization, its inputs, and the script that applies it. Returns the script's path.

    Raises SettingsError for an aggregator that is not at https://NAME, an invalid address, or missing manifests.
    """
    from simulation.deployment.files import render_template

    _require_usable(settings, cluster)
    out.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, source in _copied_files(settings).items():
        replace_file(out / name, source.read_bytes(), PRIVATE)
    values = _template_values(settings, cluster, out)
    for name, template in TEMPLATES.items():
        replace_file(out / name, render_template(template, values).encode(), PUBLIC)
    return out / SCRIPT


def _copied_files(settings: ClientSettings) -> dict[str, Path]:
    """Maps a name in the folder to the file that is copied there."""
    from shared.protocol.signing.enrolment import KeyFiles

    key = settings.signing_key_file or KeyFiles.of(settings.name, settings.state_directory).private
    found = {
        "key": key,
        "application": settings.application_key_file,
        "operator": settings.operator_key_file,
        "members.toml": settings.members,
        "authority.crt": settings.aggregator_authority,
    }
    if settings.application_key_file is None or settings.operator_key_file is None:
        raise SettingsError(
            "silo.toml: expected application_key_file and operator_key_file, as `lpsfed join` writes them"
        )
    return {name: path for name, path in found.items() if path is not None}


def _template_values(settings: ClientSettings, cluster: SiloCluster, out: Path) -> dict[str, Any]:
    return {
        "name": settings.name,
        "namespace": f"lpsfed-silo-{settings.name.replace('_', '-').rstrip('-')}",
        "manifests": os.path.relpath(cluster.manifests.resolve(), out.resolve()),
        "members": settings.members is not None,
        "authority": settings.aggregator_authority is not None,
        "settings": tuple(_config_values(settings)),
        "address": cluster.address,
        "image": cluster.image,
        "script": out / SCRIPT,
        "shard": settings.shard.resolve(),
        "catalogue": None if settings.catalogue is None else settings.catalogue.resolve(),
        "seconds": START_SECONDS,
    }


def _config_values(settings: ClientSettings) -> Iterator[tuple[str, str]]:
    """Yields the silo's settings, without paths and ports, which are the pod's."""
    from shared.method.settings import MethodSettings

    yield "NAME", settings.name
    yield "AGGREGATOR_URL", settings.aggregator_url
    yield "STRATEGY", settings.strategy
    yield "SECURE", str(settings.secure).lower()
    yield "TRUST_ON_FIRST_USE", str(settings.trust_on_first_use).lower()
    if settings.aggregator_key is not None:
        yield "AGGREGATOR_KEY", settings.aggregator_key
    if settings.known_members:
        yield "KNOWN_MEMBERS", json.dumps(settings.known_members, separators=(",", ":"))
    # The base has lines of their own for these two, which count more than METHOD and POLICY do.
    yield "METHOD__BASIS__KIND", settings.method.basis.kind
    yield "POLICY__COMMON_BASIS", settings.policy.common_basis
    if settings.catalogue is not None:
        yield "CATALOGUE", MOUNTED_CATALOGUE
    if settings.allowed_origins:
        yield "ALLOWED_ORIGINS", json.dumps(settings.allowed_origins, separators=(",", ":"))
    if settings.task != "items":
        yield "TASK", settings.task
    for name, default in (("method", MethodSettings()), ("policy", type(settings.policy)()), ("privacy", None)):
        own = getattr(settings, name).model_dump(mode="json", exclude_unset=default is None)
        usual = {} if default is None else default.model_dump(mode="json")
        changed = {key: value for key, value in own.items() if value is not None and value != usual.get(key)}
        if changed:
            yield name.upper(), json.dumps(changed, separators=(",", ":"))


def _require_usable(settings: ClientSettings, cluster: SiloCluster) -> None:
    url = urlsplit(settings.aggregator_url)
    if url.scheme != "https" or url.port is not None:
        raise SettingsError(f"aggregator: expected https://NAME, at port 443, got {settings.aggregator_url}")
    try:
        ip_address(cluster.address)
    except ValueError:
        raise SettingsError(f"--address: expected the aggregator's IP address, got {cluster.address}") from None
    if settings.proxy() is not None:
        words = "expected none, because the pod reaches the aggregator alone (docs/kubernetes.md, Not covered)"
        raise SettingsError(f"outbound_proxy: {words}, got one")
    if not (cluster.manifests / "base/silo" / KUSTOMIZATION).is_file():
        raise SettingsError(f"--folder: expected the project's k8s/, got {cluster.manifests}")
    for path in (settings.shard, settings.catalogue):
        if path is not None and (wrong := sorted(set(str(path.resolve())) & FORBIDDEN_CHARACTERS)):
            raise SettingsError(f"{path}: expected a path without {' '.join(wrong)}")
