"""What happens in the service -> Prometheus series, in a registry of its own for each app."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from aggregator_service.rounds import Run
from shared.schemas import Phase
from shared.web.tls import Identity, measure

PREFIX = "lpsfed_aggregator"
PHASES: tuple[Phase, ...] = ("waiting", "open", "aggregated", "finished", "failed")


class Metrics:
    """Series named lpsfed_aggregator_*; no label ever holds a client's name."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self.uploads = Counter(f"{PREFIX}_uploads", "Uploads by outcome", ["outcome"], registry=registry)
        self.upload_bytes = Counter(f"{PREFIX}_upload_bytes", "Bytes of accepted updates", registry=registry)
        self.strangers = Counter(
            f"{PREFIX}_strangers", "Calls that no client has signed who has joined", registry=registry
        )
        self.unrecorded = Counter(
            f"{PREFIX}_unrecorded_refusals", "Refusals beyond what is recorded of one client", registry=registry
        )
        self.damaged = Counter(
            f"{PREFIX}_damaged_blobs", "Stored updates and states that the disk has damaged", registry=registry
        )
        self.rounds = Counter(f"{PREFIX}_rounds", "Rounds that ended, by outcome", ["outcome"], registry=registry)
        self.round_seconds = Histogram(f"{PREFIX}_round_seconds", "From opened to closed", registry=registry)
        self.aggregation_seconds = Histogram(f"{PREFIX}_aggregation_seconds", "Closed to durable", registry=registry)
        self.requests = Histogram(
            f"{PREFIX}_request_seconds", "Latency by route", ["method", "route", "status"], registry=registry
        )
        self._phase = Gauge(f"{PREFIX}_phase", "1 for the current run's phase", ["phase"], registry=registry)
        self._round = Gauge(f"{PREFIX}_round", "Number of the current round", registry=registry)
        self.clients = Gauge(f"{PREFIX}_clients", "Clients enrolled in the federation", registry=registry)

    def stand(self, phase: Phase, number: int) -> None:
        """Where the current run stands."""
        for known in PHASES:
            self._phase.labels(known).set(known == phase)
        self._round.set(number)

    def close_round(self, run: Run, *, now: float) -> None:
        """A round whose state is durable since `now`."""
        closed_at = run.closed_at or now
        self.rounds.labels("aggregated").inc()
        self.round_seconds.observe(closed_at - run.opened_at)
        self.aggregation_seconds.observe(now - closed_at)

    def watch(self, identities: Mapping[str, Identity]) -> None:
        """How long the service's certificates are good for."""
        measure(identities, PREFIX, self._registry)

    def text(self) -> bytes:
        return generate_latest(self._registry)
