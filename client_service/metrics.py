"""What happens in the service -> Prometheus series.

No quality and no count of users, items or edges: a silo's monitoring may be read by others than its data.
"""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

from shared.web.tls import Identity, measure

PREFIX = "lpsfed_client"


class Metrics:
    """Series named lpsfed_client_*, in a registry of their own for each app."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self.rounds = Counter(f"{PREFIX}_rounds", "Rounds taken part in", registry=registry)
        self.upload_bytes = Counter(f"{PREFIX}_upload_bytes", "Bytes of accepted updates", registry=registry)
        self.requests = Histogram(
            f"{PREFIX}_request_seconds", "Latency by route", ["method", "route", "status"], registry=registry
        )

    def watch(self, identities: Mapping[str, Identity]) -> None:
        """How long the service's certificates are good for."""
        measure(identities, PREFIX, self._registry)

    def text(self) -> bytes:
        return generate_latest(self._registry)
