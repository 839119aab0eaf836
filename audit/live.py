"""Running services -> their evidence, without probes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from audit.collect import of_aggregator, of_client
from audit.evidence import Evidence
from audit.inquiry import opened, token


async def read_services(url: str, token_file: Path, clients: Mapping[str, str]) -> tuple[Evidence, ...]:
    """The clients' ledgers first: what they call accepted by then, the aggregator has on record."""
    found = []
    for name, place in clients.items():
        async with opened(place) as http:
            found.append(await of_client(http, name))
    async with opened(url, token(token_file)) as http:
        found.append(await of_aggregator(http, "aggregator"))
    return tuple(found)
