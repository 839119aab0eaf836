"""Checks of the probes' results, and their summary for the report."""

from __future__ import annotations

from collections.abc import Iterator

from audit.checks.findings import AuditFinding, make_finding
from audit.evidence.case import AuditCase
from audit.evidence.evidence import ProbeResult
from audit.probes import bodies as masked
from audit.probes.bodies import body_digests
from shared.message import Message
from shared.words import count_noun


class ProbeGroup(Message):
    """Probes of one kind by parts of one role, as a line of the report."""

    role: str
    kind: str
    probes: int
    held: int
    expected: str
    observed: tuple[str, ...]


def check_verdicts(case: AuditCase) -> AuditFinding:
    """Checks that every probe held: refusals were refused, controls got through."""
    total = sum(len(part.probes) for part in case.parts)
    return make_finding(
        "probes",
        "every forbidden try was refused or out of reach, and every control succeeded",
        f"{count_noun(total, 'probe')} by {count_noun(sum(bool(part.probes) for part in case.parts), 'part')}"
        ", as expected",
        (
            f"{part.name}, {probe.kind}, {probe.name}: {probe.observed}"
            for part in case.parts
            for probe in part.probes
            if not probe.held
        ),
    )


def check_bodies(case: AuditCase) -> AuditFinding:
    """Checks that every body of a probe can be made again from the declarations.

    Any other body could hold anything.
    """
    total = sum(len(sent) for sent in case.probe_sendings.values())
    return make_finding(
        "probes' bodies",
        "bodies that follow from the declarations alone",
        f"{count_noun(total, 'body', 'bodies')}, all identical",
        _strange_bodies(case),
    )


def _strange_bodies(case: AuditCase) -> Iterator[str]:
    names = {*case.clients, *case.known_clients}
    for name, client in case.clients.items():
        places = {(sending.run, sending.round) for sending in client.evidence.sent if sending.run and sending.round}
        known = body_digests(client.declaration, name, sorted(names - {name})) if client.evidence.sent else frozenset()
        known |= masked.masked_digests(client.declaration, name, sorted(places))
        for sending in client.evidence.sent:
            if (sending.sha256, sending.bytes) not in known:
                yield f"{name}, {sending.call}, {sending.sha256[:12]}: another body than any of the probes'"


def unprobed_parts(case: AuditCase) -> tuple[str, ...]:
    """Lists the known clients and the aggregator without evidence of probes."""
    probed = {part.name for part in case.parts if part.probes}
    aggregator = () if case.aggregator is None or case.aggregator.name in probed else (case.aggregator.name,)
    return (*aggregator, *(name for name in sorted({*case.known_clients, *case.clients}) if name not in probed))


def group_probes(case: AuditCase) -> tuple[ProbeGroup, ...]:
    """Groups the probes by role and kind, in the order in which they were made."""
    groups: dict[tuple[str, str, str], list[ProbeResult]] = {}
    for part in case.parts:
        for probe in part.probes:
            groups.setdefault((part.role, probe.kind, probe.expected), []).append(probe)
    return tuple(
        ProbeGroup(
            role=role,
            kind=kind,
            probes=len(probes),
            held=sum(probe.held for probe in probes),
            expected=expected,
            observed=tuple(sorted({probe.observed for probe in probes})),
        )
        for (role, kind, expected), probes in groups.items()
    )
