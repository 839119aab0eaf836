"""What is written on the command line -> what it says, or a SettingsError naming the flag."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from shared.errors import SettingsError
from shared.web.address import require_port

if TYPE_CHECKING:
    from audit.probes.meeting import SystemPart
    from audit.probes.network import OutsideHost
    from audit.probes.standing import PartLocation

PLACE = re.compile(r"(?P<host>[^\s/]+):(?P<port>[0-9]{1,5})")
CLIENT = re.compile(r"(?P<name>[a-z0-9][a-z0-9_-]{0,62})=(?P<url>https?://[^/?#\s]+)/?")
PROCESS = re.compile(r"self|[1-9][0-9]{0,9}")


class RoleName(StrEnum):
    """A part's role as the command line names it."""

    client = "client"
    aggregator = "aggregator"
    gateway = "gateway"


def own_part(name: str, role: RoleName, port: int | None, behind: str | None) -> SystemPart:
    """This part, at its own addresses."""
    from pydantic import ValidationError

    from audit.probes import addresses
    from audit.probes.meeting import PORTS, SystemPart, part_behind

    here = tuple(str(interface.ip) for interface in addresses.own_interfaces())
    gate = (behind or part_behind(name)) if role is RoleName.gateway else None
    number = PORTS[role.value] if port is None else port
    try:
        return SystemPart(name=name, role=role.value, port=number, addresses=here, behind=gate)
    except ValidationError as error:
        wrong = sorted({str(fault["loc"][0]) for fault in error.errors()})
        raise SettingsError(f"--{', --'.join(wrong)}: expected a part's name and a port, got others") from None


def split_names(text: str) -> tuple[str, ...]:
    """The names in "a,b,c". SettingsError where there is none."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise SettingsError("--expect: expected the names of all parts that meet, got none")
    return names


def parse_outside(place: str, udp: int, name: str) -> OutsideHost:
    """HOST:PORT, a UDP port and a name -> the host that stands for the internet. SettingsError for another form."""
    from audit.probes.network import OutsideHost

    match = PLACE.fullmatch(place)
    if match is None or not 0 < int(match["port"]) < 65536:
        raise SettingsError(f"--outside: expected HOST:PORT, got {place!r}")
    return OutsideHost(match["host"].strip("[]"), int(match["port"]), udp, name)


def part_location(
    part: SystemPart, root: Path, own: Iterable[Path], deployment: str, process: str, brought: Iterable[Path | None]
) -> PartLocation:
    """Where to look. `deployment`: none where it is not known what the part's container may have."""
    from audit.probes.expected import read_expected
    from audit.probes.standing import PartLocation

    if not PROCESS.fullmatch(process):
        raise SettingsError(f"--process: expected self or a process's number, got {process!r}")
    may = read_expected(part.role, deployment, part.name) if deployment else None
    places = tuple(str(place) for place in brought if place is not None)
    return PartLocation(root, tuple(own), may, Path("/proc") / process, places)


def parse_urls(clients: Iterable[str]) -> dict[str, str]:
    """Texts NAME=URL -> URL by name. SettingsError for another form, a name given twice, or no text at all."""
    urls: dict[str, str] = {}
    for text in clients:
        match = CLIENT.fullmatch(text)
        if match is None or match["name"] in urls:
            raise SettingsError(f"--client: expected NAME=URL, each name once, got {text!r}")
        urls[match["name"]] = match["url"]
    if not urls:
        raise SettingsError("--client: expected NAME=URL of every client, got none")
    return urls


def parse_files(option: str, texts: Iterable[str]) -> dict[str, Path]:
    """Texts NAME=FILE -> file by name. SettingsError for another form, or a name given twice."""
    files: dict[str, Path] = {}
    for text in texts:
        name, mark, file = text.partition("=")
        if not (name and mark and file) or name in files:
            raise SettingsError(f"{option}: expected NAME=FILE, each name once, got {text!r}")
        files[name] = Path(file)
    return files


def loopback_ports(published: Iterable[int]) -> tuple[int, ...]:
    """The given numbers as ports of the machine's loopback. SettingsError for one that is no port."""
    return tuple(require_port("--published", port) for port in published)


def likely_ports(parts: Iterable[SystemPart]) -> tuple[int, ...]:
    """Ports of a machine that publishes each of these gateways, one port after the other from the aggregator's on."""
    from audit.probes.meeting import PORTS

    gateways = sum(part.role == "gateway" for part in parts)
    return tuple(range(PORTS["aggregator"], PORTS["aggregator"] + gateways))
