"""Kinds of planted faults: what each changes, and how the report must name it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from simulation.breaks.planted_header import HEADER, SOURCE
from simulation.partitioning.sources import number_silos

# What an engine leaves to a root user who drops nothing.
DEFAULT_RIGHTS = (
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "NET_RAW"),
    *("SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
)
ENGINE_SOCKET = "/var/run/docker.sock"


@dataclass(frozen=True)
class VolumeScript:
    """Shell lines that run beside volumes, which are given as name: place."""

    volumes: Mapping[str, str]
    script: str
    variables: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Break:
    """A planted fault.

    services: changes of services in an override of the Compose file. before, after: scripts that run before the
    containers change, and after the probes. faults: texts of which each must stand in a fault of the report.
    """

    description: str
    faults: tuple[str, ...]
    services: Mapping[str, Any] = field(default_factory=dict)
    before: VolumeScript | None = None
    after: VolumeScript | None = None


def known_breaks(silos: int) -> dict[str, Break]:
    """Returns the planted faults by kind for a federation of `silos` silos.

    Different kinds change different silos, as far as there are enough.
    """
    numbers = number_silos(silos)
    key, header, evidence, root = (numbers[place % silos] for place in range(4))
    return {
        "key": key_in_aggregator(key),
        "header": changed_code(header),
        "root": root_gateway(root),
        "shard": copied_shard(key),
        "evidence": missing_evidence(evidence),
    }


def key_in_aggregator(silo: str) -> Break:
    """Returns the fault: the silo's private key is mounted into the aggregator."""
    return Break(
        f"client-{silo}'s private key is mounted into the aggregator",
        ("aggregator, mounts, places: also /spare", "aggregator, contents, private key: 1 at /spare"),
        services={"aggregator": {"volumes": [f"secret-{silo}:/spare:ro"]}},
    )


def changed_code(silo: str) -> Break:
    """Returns the fault: a client's code adds its interactions to the headers of requests."""
    name = f"client-{silo}"
    return Break(
        f"{name}'s code is changed: 6,000 characters of its interactions in the header {HEADER} of each request",
        (f"{name}, {HEADER}", f"{name}, its code, by its files, its environment: other than here: PYTHONPATH"),
        services={name: {"environment": {"PYTHONPATH": "/state/changed:/opt/code"}}},
        before=VolumeScript(
            {f"state-{silo}": "/state"},
            'mkdir -p /state/changed && printf %s "$CODE" > /state/changed/sitecustomize.py',
            {"CODE": SOURCE},
        ),
    )


def root_gateway(silo: str) -> Break:
    """Returns the fault: a gateway runs as root, with the engine's socket."""
    name = f"gateway-{silo}"
    rights = {"user": "0:0", "read_only": False, "cap_add": [*DEFAULT_RIGHTS], "volumes": [f"{ENGINE_SOCKET}:/spare"]}
    return Break(
        f"client-{silo}'s gateway runs as root, with default rights, a root it can write and the engine's socket as "
        "/spare",
        (
            f"{name}, confinement, user: uid 0",
            f"{name}, confinement, capabilities: Cap",
            f"{name}, confinement, root file system: writable",
            f"{name}, mounts, places: also /spare",
            f"{name}, sockets, of UNIX: 1: /spare",
        ),
        services={name: rights},
    )


def copied_shard(silo: str) -> Break:
    """Returns the fault: a copy of the silo's shard lies in the aggregator's volume."""
    return Break(
        f"client-{silo}'s shard lies as train.parquet in the aggregator's own volume",
        ("aggregator, contents, Parquet: 1 at /state",),
        before=VolumeScript(
            {f"shard-{silo}": "/shard:ro", "state-aggregator": "/state"},
            "cp /shard/interactions.parquet /state/train.parquet",
        ),
    )


def missing_evidence(silo: str) -> Break:
    """Returns the fault: a silo's evidence is removed after the probes."""
    return Break(
        f"client-{silo}'s evidence is gone",
        (f"client-{silo}: no evidence",),
        after=VolumeScript({f"evidence-{silo}": "/evidence"}, f"rm /evidence/client-{silo}.json"),
    )
