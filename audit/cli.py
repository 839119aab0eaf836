"""Commands of the audit: `probe` for each part, `privacy-report` over their evidence."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from audit.checks.presence import WITHIN_SECONDS as WITHIN
from audit.terminal import OUT, CommandGroup, run_command_line, spread_records
from shared.errors import SettingsError
from shared.files import use_private_umask
from shared.web.address import require_port

if TYPE_CHECKING:
    from audit.evidence.evidence import PartEvidence
    from audit.probes.inquiry import Services
    from audit.probes.meeting import SystemPart
    from audit.probes.network import OutsideHost
    from audit.probes.part import PartLocation
    from shared.web.outgoing import OutgoingTls


PLACE = re.compile(r"(?P<host>[^\s/]+):(?P<port>[0-9]{1,5})")
CLIENT = re.compile(r"(?P<name>[a-z0-9][a-z0-9_-]{0,62})=(?P<url>https?://[^/?#\s]+)/?")
PROCESS = re.compile(r"self|[1-9][0-9]{0,9}")


class RoleName(StrEnum):
    """Role of a part, as the command line names it."""

    client = "client"
    aggregator = "aggregator"
    gateway = "gateway"


def own_part(name: str, role: RoleName, port: int | None, behind: str | None) -> SystemPart:
    """Describes this part, with its own addresses."""
    from pydantic import ValidationError

    from audit.probes import network as addresses
    from audit.probes.meeting import PORTS, SystemPart, part_behind

    here = tuple(str(interface.ip) for interface in addresses.own_interfaces())
    gate = (behind or part_behind(name)) if role is RoleName.gateway else None
    number = PORTS[role.value] if port is None else port
    try:
        return SystemPart(name=name, role=role.value, port=number, addresses=here, behind=gate)
    except ValidationError as error:
        wrong = sorted({str(fault["loc"][0]) for fault in error.errors()})
        raise SettingsError(f"--{', --'.join(wrong)}: expected a part's name and a port, got other values") from None


def split_names(text: str) -> tuple[str, ...]:
    """Splits "a,b,c" into names; raises SettingsError for none."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise SettingsError("--expect: expected the names of all parts, a,b,c, got none")
    return names


def parse_outside(place: str, udp: int, name: str) -> OutsideHost:
    """Parses HOST:PORT, a UDP port and a name of an internet host.

    Raises SettingsError for another form.
    """
    from audit.probes.network import OutsideHost

    match = PLACE.fullmatch(place)
    if match is None or not 0 < int(match["port"]) < 65536:
        raise SettingsError(f"--outside: expected HOST:PORT, got {place!r}")
    return OutsideHost(match["host"].strip("[]"), int(match["port"]), udp, name)


def part_location(part: SystemPart, location: LocationFlags, brought: Iterable[Path | None]) -> PartLocation:
    """Returns where to look for a part's files.

    brought: places that the command itself has been given.
    """
    from audit.probes.expected import read_expected
    from audit.probes.part import PartLocation

    if not PROCESS.fullmatch(location.process):
        raise SettingsError(f"--process: expected self or a process's number, got {location.process!r}")
    may = read_expected(part.role, location.expected, part.name) if location.expected else None
    places = tuple(str(place) for place in brought if place is not None)
    return PartLocation(location.root, tuple(location.own or ()), may, Path("/proc") / location.process, places)


def parse_urls(clients: Iterable[str]) -> dict[str, str]:
    """Parses NAME=URL texts; SettingsError for another form, repeated names, or none."""
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
    """Parses NAME=FILE texts; raises SettingsError for another form or repeated names."""
    files: dict[str, Path] = {}
    for text in texts:
        name, mark, file = text.partition("=")
        if not (name and mark and file) or name in files:
            raise SettingsError(f"{option}: expected NAME=FILE, each name once, got {text!r}")
        files[name] = Path(file)
    return files


def loopback_ports(published: Iterable[int]) -> tuple[int, ...]:
    """Returns the numbers as ports of loopback; SettingsError for one that is none."""
    return tuple(require_port("--published", port) for port in published)


def likely_ports(parts: Iterable[SystemPart]) -> tuple[int, ...]:
    """Returns the ports on which a machine likely publishes these gateways.

    One port after the other from the aggregator's on.
    """
    from audit.probes.meeting import PORTS

    gateways = sum(part.role == "gateway" for part in parts)
    return tuple(range(PORTS["aggregator"], PORTS["aggregator"] + gateways))


AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON")]
AggregatorUrl = Annotated[str, typer.Option(help="URL of the aggregator")]
TokenFile = Annotated[Path | None, typer.Option(help="File with the operator's token")]
KeyFile = Annotated[Path | None, typer.Option(help="File with the client's operator key")]
Authority = Annotated[Path | None, typer.Option("--ca", help="CA bundle (PEM), replaces the system's")]
Certificate = Annotated[Path | None, typer.Option(help="Certificate (PEM) for a service that asks for one")]
CertificateKey = Annotated[Path | None, typer.Option(help="Private key of --certificate (PEM)")]
Patience = Annotated[
    float,
    typer.Option(
        metavar="n",
        envvar="LPSFED_PROBE_MEET_SECONDS",
        min=0,
        max=3600,
        help="Longest wait for other parts, in seconds",
    ),
]
Expected = Annotated[
    str,
    typer.Option(envvar="LPSFED_PROBE_EXPECTED", help="What the container may have: compose or kubernetes, and gpu"),
]
HOME = "http://127.0.0.1:8800"


@dataclass(frozen=True)
class CallFlags:
    """Flags of TLS: trusted authorities and the client certificate."""

    ca: Authority = None
    certificate: Certificate = None
    certificate_key: CertificateKey = None

    def make_tls(self) -> OutgoingTls:
        """Makes the TLS context of outgoing calls."""
        from shared.web.outgoing import OutgoingTls

        return OutgoingTls(self.ca, self.certificate, self.certificate_key)


@dataclass(frozen=True)
class ServiceFlags:
    """Flags of the services' URLs and the keys to ask them with."""

    aggregator_url: AggregatorUrl = HOME
    client_url: Annotated[str, typer.Option(help="URL of the client")] = "http://127.0.0.1:8801"
    signing_key_file: Annotated[
        Path | None, typer.Option(help="The client's private key: tries undeclared uploads; needs --record")
    ] = None
    operator_token_file: TokenFile = None
    operator_key_file: KeyFile = None

    def services(self, tls: OutgoingTls) -> Services:
        """Returns the services as an inquiry takes them."""
        from audit.probes.inquiry import Services

        keys = (self.signing_key_file, self.operator_token_file, self.operator_key_file)
        return Services(self.aggregator_url, self.client_url, *keys, tls)


@dataclass(frozen=True)
class LocationFlags:
    """Flags of a part's own files and process.

    expected: empty if it is unknown what it may have.
    """

    own: Annotated[list[Path] | None, typer.Option(help="Folder of the client's own files; repeatable")] = None
    root: Annotated[Path, typer.Option(help="Folder in which other parts' files are searched")] = Path("/")
    expected: Expected = ""
    process: Annotated[
        str, typer.Option(envvar="LPSFED_PROBE_PROCESS", help="Id of the part's process, if visible")
    ] = "self"


@dataclass(frozen=True)
class MeetingFlags:
    """Flags of the folder where parts find each other, and the parts awaited."""

    meeting: Annotated[
        Path | None,
        typer.Option(
            "--meet", envvar="LPSFED_PROBE_MEET", help="Folder in which the probes of all parts wait for each other"
        ),
    ] = None
    expect: Annotated[
        str,
        typer.Option(envvar="LPSFED_PROBE_EXPECT", help="Names of the parts whose probes wait for each other: a,b,c"),
    ] = ""
    meet_seconds: Patience = 60.0
    peers: Annotated[list[str] | None, typer.Option("--peer", help="Other part, NAME=ROLE@HOST:PORT; repeatable")] = (
        None
    )


@dataclass(frozen=True)
class OutsideFlags:
    """Flags of the host that stands for the internet."""

    outside: Annotated[
        str, typer.Option(envvar="LPSFED_PROBE_OUTSIDE", help="Host on the internet, HOST:PORT of TCP")
    ] = "1.1.1.1:443"
    outside_udp: Annotated[
        int, typer.Option(metavar="n", min=1, max=65535, help="Port of the same host that answers DNS")
    ] = 53
    outside_name: Annotated[str, typer.Option(help="Name that only the internet's DNS knows")] = "example.com"


@spread_records
def probe(
    role: Annotated[RoleName, typer.Argument(help="Role of the part in whose place the probe runs")],
    name: Annotated[str, typer.Option(help="Name of that part")],
    services: ServiceFlags,
    call: CallFlags,
    location: LocationFlags,
    meet: MeetingFlags,
    behind: Annotated[str | None, typer.Option(help="Part behind a gateway (default: by its name)")] = None,
    port: Annotated[int | None, typer.Option(help="Port of this part's service (default: by its role)")] = None,
    published: Annotated[list[int] | None, typer.Option(help="Port on the machine's loopback; repeatable")] = None,
    *,
    internet: OutsideFlags,
    record: Annotated[Path | None, typer.Option(help="File for the evidence, which the report reads")] = None,
    as_json: AsJson = False,
) -> None:
    """Probes the boundary from inside a part: tries actions that must be refused."""
    from audit import cli as flags
    from audit.evidence import evidence
    from audit.probes.inquiry import Inquiry, ignore_announcement, run_inquiry, skip_waiting
    from audit.probes.meeting import meet_parts, parse_peer, wait_for_others

    part = flags.own_part(name, role, port, behind)
    parts = {peer.name: peer for peer in map(parse_peer, meet.peers or ())}
    folder, seconds = meet.meeting, meet.meet_seconds
    if folder is not None:
        parts |= asyncio.run(meet_parts(folder, part, flags.split_names(meet.expect), seconds))
    inquiry = Inquiry(
        own=part,
        parts=parts,
        outside=flags.parse_outside(internet.outside, internet.outside_udp, internet.outside_name),
        published=flags.loopback_ports(published or ()) or flags.likely_ports((part, *parts.values())),
        standing=flags.part_location(part, location, (folder, record and record.parent)),
        services=services.services(call.make_tls()),
        recorded=record is not None,
        announce=ignore_announcement if record is None else partial(evidence.merge_evidence, path=record),
        settled=skip_waiting if folder is None else partial(wait_for_others, folder, parts.values(), seconds),
    )
    gathered = asyncio.run(run_inquiry(inquiry))
    _print_probes(gathered, as_json=as_json)
    _record_verdict(gathered, part, record, folder)


def _record_verdict(gathered: PartEvidence, part: SystemPart, record: Path | None, meeting: Path | None) -> None:
    """Writes the evidence for the report, or exits with 1 if a probe failed."""
    from audit.evidence import evidence
    from audit.probes.meeting import leave_meeting

    if record is not None:
        evidence.merge_evidence(gathered, record)
    if meeting is not None:
        leave_meeting(meeting, part)
    if record is None and not all(result.held for result in gathered.probes):
        raise typer.Exit(1)


def _print_probes(gathered: PartEvidence, *, as_json: bool) -> None:
    from audit import console

    if as_json:
        shown = gathered.model_dump_json(indent=1, include={"name", "role", "taken_at", "probes", "sent"})
        sys.stdout.write(shown + "\n")
    else:
        OUT.print(
            console.probe_table(f"Probes of {gathered.name}", ((gathered.name, result) for result in gathered.probes))
        )


@spread_records
def privacy_report(
    files: Annotated[list[Path] | None, typer.Argument(help="Files of evidence, or folders of them")] = None,
    aggregator_url: AggregatorUrl = HOME,
    operator_token_file: TokenFile = None,
    clients: Annotated[list[str] | None, typer.Option("--client", help="Running client, NAME=URL; repeatable")] = None,
    operator_keys: Annotated[
        list[str] | None, typer.Option("--operator-key", help="Operator key of a client, NAME=FILE; repeatable")
    ] = None,
    signing_keys: Annotated[
        list[str] | None,
        typer.Option("--signing-key", help="Private key of a client, NAME=FILE, to verify its signatures; repeatable"),
    ] = None,
    *,
    call: CallFlags,
    every_field: Annotated[bool, typer.Option("--every-field", help="Show the fields of every update")] = False,
    every_probe: Annotated[bool, typer.Option("--every-probe", help="Show every probe")] = False,
    brief: Annotated[bool, typer.Option("--brief", help="Show only a summary if there is no fault")] = False,
    demonstrate: Annotated[
        bool, typer.Option("--demonstrate", help="First show a report with one deliberate fault, which it must name")
    ] = False,
    expect: Annotated[
        str, typer.Option(envvar="LPSFED_PROBE_EXPECT", help="Further parts whose evidence is required: a,b,c")
    ] = "",
    within: Annotated[
        float, typer.Option(min=1, help="Longest time between oldest and newest evidence, in seconds")
    ] = WITHIN,
    records_only: Annotated[
        bool, typer.Option("--records-only", help="Compare the records alone; no probes are required")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compares what left the clients with what arrived at the aggregator.

    It reads evidence or running services. With both, the services tell what crossed the boundary, and the evidence
    what the probes tried and sent. Exit code 1 for a fault.
    """
    from audit import cli as flags
    from audit import console
    from audit.checks.presence import ReportRequirements
    from audit.demonstration import plant_break
    from audit.evidence import evidence
    from audit.evidence.case import open_case
    from audit.probes.inquiry import ServicePlaces, read_services
    from audit.report import make_report
    from shared.protocol.signing.keys import read_private

    if not files and operator_token_file is None:
        raise SettingsError("expected evidence, or --operator-token-file and every --client, or both, got neither")
    parts = evidence.gather_evidence(files or ())
    if operator_token_file is not None:
        urls, keys = flags.parse_urls(clients or ()), flags.parse_files("--operator-key", operator_keys or ())
        places = ServicePlaces(aggregator_url, operator_token_file, urls, keys, call.make_tls())
        parts = asyncio.run(read_services(places, probed=parts))
    requirements = ReportRequirements(flags.split_names(expect) if expect else (), not records_only, within)
    signing = flags.parse_files("--signing-key", signing_keys or ())
    finished = make_report(open_case(parts), requirements, {name: read_private(file) for name, file in signing.items()})
    if demonstrate and finished.held and not as_json:
        console.show_break(plant_break(parts, requirements))
    if as_json:
        sys.stdout.write(finished.model_dump_json(indent=1) + "\n")
    elif brief and finished.held:
        console.show_brief(finished)
    else:
        one_by_one = [(part.name, result) for part in parts for result in part.probes] if every_probe else ()
        console.show_report(finished, every_field=every_field, every_probe=one_by_one)
    if not finished.held:
        raise typer.Exit(1)


app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    add_completion=False,
    help="Audits the boundary: what crossed it, and what could.",
)
for command in (probe, privacy_report):
    app.command()(command)


def main() -> None:
    """Runs the audit's command line."""
    with use_private_umask():
        run_command_line(app)
