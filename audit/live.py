"""Running services -> their evidence, with what probes of theirs have found before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from audit.collect import of_aggregator, of_client
from audit.evidence import Evidence
from audit.inquiry import opened, token
from shared.web.calling import Calling


@dataclass(frozen=True)
class Places:
    """Where the services answer, and the files with the secrets of their operators."""

    aggregator: str
    token: Path
    clients: Mapping[str, str]
    keys: Mapping[str, Path]
    calling: Calling


async def read_services(places: Places, probed: Sequence[Evidence] = ()) -> tuple[Evidence, ...]:
    """The clients' ledgers first: what they call accepted by then, the aggregator has on record."""
    found = []
    for name, place in places.clients.items():
        key = token(places.keys[name]) if name in places.keys else None
        async with opened(place, key, calling=places.calling) as http:
            found.append(await of_client(http, name))
    async with opened(places.aggregator, token(places.token), calling=places.calling) as http:
        found.append(await of_aggregator(http, "aggregator"))
    return _with_probes(found, probed)


def _with_probes(parts: Sequence[Evidence], probed: Sequence[Evidence]) -> tuple[Evidence, ...]:
    """Each part with the probes of the evidence of its name; parts that serve nothing themselves as they are."""
    earlier, names = {one.name: one for one in probed}, {part.name for part in parts}
    told = (part.model_copy(update=_probed(earlier[part.name])) if part.name in earlier else part for part in parts)
    return (*told, *(one for one in probed if one.name not in names))


def _probed(part: Evidence) -> dict[str, object]:
    """What its probes have found, and when that was."""
    return {"probes": part.probes, "sent": part.sent, "probed_at": part.probed_at or part.taken_at}
