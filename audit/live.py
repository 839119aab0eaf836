"""Running services -> their evidence, with what probes of theirs have found before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from audit.collect import read_aggregator_evidence, read_client_evidence
from audit.evidence import PartEvidence
from audit.inquiry import open_http, read_token
from shared.web.calling import Calling


@dataclass(frozen=True)
class ServicePlaces:
    """Where the services answer, and the files with the secrets of their operators."""

    aggregator: str
    token: Path
    clients: Mapping[str, str]
    keys: Mapping[str, Path]
    calling: Calling


async def read_services(places: ServicePlaces, probed: Sequence[PartEvidence] = ()) -> tuple[PartEvidence, ...]:
    """The clients' ledgers first: what they call accepted by then, the aggregator has on record."""
    parts = []
    for name, place in places.clients.items():
        key = read_token(places.keys[name]) if name in places.keys else None
        async with open_http(place, key, calling=places.calling) as http:
            parts.append(await read_client_evidence(http, name))
    async with open_http(places.aggregator, read_token(places.token), calling=places.calling) as http:
        parts.append(await read_aggregator_evidence(http, "aggregator"))
    return _with_probes(parts, probed)


def _with_probes(parts: Sequence[PartEvidence], probed: Sequence[PartEvidence]) -> tuple[PartEvidence, ...]:
    """Each part with the probes of the evidence of its name; parts that serve nothing themselves as they are."""
    earlier, names = {part.name: part for part in probed}, {part.name for part in parts}
    updated = (_add_probes(part, earlier[part.name]) if part.name in earlier else part for part in parts)
    return (*updated, *(part for part in probed if part.name not in names))


def _add_probes(part: PartEvidence, probed: PartEvidence) -> PartEvidence:
    """The part with the results of earlier probes, and the time of these."""
    probed_at = probed.probed_at or probed.taken_at
    return part.model_copy(update={"probes": probed.probes, "sent": probed.sent, "probed_at": probed_at})
