"""Prometheus metrics of the aggregator, in a registry of its own for each application."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from aggregator_service.rounds.run import Run
from aggregator_service.rounds.worker_metrics import WorkerMetrics
from shared.protocol.schemas import Phase
from shared.web.tls import TlsIdentity, register_expiry_metric

PREFIX = "lpsfed_aggregator"
PHASES: tuple[Phase, ...] = ("waiting", "open", "aggregated", "finished", "failed", "cancelled")


class AggregatorMetrics:
    """Series named lpsfed_aggregator_*; no label ever holds a client's name."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._registry = CollectorRegistry()
        self._clock = clock
        self._run: Run | None = None
        self._workers: WorkerMetrics | None = None
        self._create_counters()
        self._create_histograms()
        self._create_gauges()

    def _create_counters(self) -> None:
        counter = partial(Counter, registry=self._registry)
        self.uploads = counter(f"{PREFIX}_uploads", "Uploads by outcome", ["outcome"])
        self.upload_bytes = counter(f"{PREFIX}_upload_bytes", "Bytes of accepted updates")
        self.refused = counter(f"{PREFIX}_refused_messages", "Joins and uploads refused, by reason", ["call", "code"])
        self.strangers = counter(f"{PREFIX}_strangers", "Calls without the signature of a joined client")
        self.unrecorded = counter(f"{PREFIX}_unrecorded_refusals", "Refusals beyond the recorded ones of a client")
        self.damaged = counter(f"{PREFIX}_damaged_blobs", "Stored updates and states that the disk damaged")
        self.streams_ended = counter(f"{PREFIX}_streams_ended", "Held streams that ended, by reason", ["reason"])
        self.rounds = counter(f"{PREFIX}_rounds", "Rounds that ended, by outcome", ["outcome"])

    def _create_histograms(self) -> None:
        histogram = partial(Histogram, registry=self._registry)
        self.round_seconds = histogram(f"{PREFIX}_round_seconds", "Seconds from a round's opening to its closing")
        self.aggregation_seconds = histogram(
            f"{PREFIX}_aggregation_seconds", "Seconds from a round's closing until its state is stored"
        )
        self.requests = histogram(f"{PREFIX}_request_seconds", "Latency by route", ["method", "route", "status"])

    def _create_gauges(self) -> None:
        gauge = partial(Gauge, registry=self._registry)
        self._phase = gauge(f"{PREFIX}_phase", "1 for the current run's phase", ["phase"])
        self._round = gauge(f"{PREFIX}_round", "Number of the current round")
        self._since = gauge(f"{PREFIX}_seconds_since_round", "Seconds since a round of the newest run opened or closed")
        self._since.set_function(self._seconds_since_moved)
        self._left = gauge(f"{PREFIX}_seconds_left", "Seconds until the deadline of a waiting phase")
        self._left.set_function(self._seconds_left)
        self._missing = gauge(f"{PREFIX}_missing_clients", "Clients whose update the open round waits for")
        self._missing.set_function(self._count_missing)
        self._to_quorum = gauge(f"{PREFIX}_updates_to_quorum", "Updates that the open round still needs for its quorum")
        self._to_quorum.set_function(self._count_to_quorum)
        self._ready = gauge(f"{PREFIX}_ready", "1 while clients may call")
        self._refusing = gauge(f"{PREFIX}_disk_refuses", "1 while the disk refuses data")
        self._free = gauge(f"{PREFIX}_disk_free_bytes", "Free bytes on the disk of the state directory")
        self.clients = gauge(f"{PREFIX}_clients", "Clients enrolled in the federation")
        self._streams = gauge(f"{PREFIX}_streams", "Streams that clients hold to hear of changes")
        self.quarantined = gauge(f"{PREFIX}_quarantined_clients", "Quarantined clients of the newest run")

    def show_run(self, run: Run) -> None:
        """Sets the series of the current run."""
        self._run = run
        for known in PHASES:
            self._phase.labels(known).set(known == run.phase)
        self._round.set(run.round)

    def show_received(self, run: Run, count: int) -> None:
        """Sets the series of an open round by the number of updates at all workers."""
        self._missing.set(max(0, len(run.awaited) - count))
        self._to_quorum.set(max(0, run.quorum - count))

    def watch_state(
        self, directory: Path, unready_reason: Callable[[], str | None], refusal: Callable[[], str | None]
    ) -> None:
        """Exports readiness, disk refusals and free space of the state directory."""
        self._ready.set_function(lambda: float(unready_reason() is None))
        self._refusing.set_function(lambda: float(refusal() is not None))
        self._free.set_function(lambda: float(shutil.disk_usage(directory).free))

    def watch_streams(self, count: Callable[[], int]) -> None:
        """Exports the number of held streams."""
        self._streams.set_function(count)

    def _seconds_since_moved(self) -> float:
        return 0.0 if self._run is None else max(0.0, self._clock() - self._run.phase_began_at)

    def _seconds_left(self) -> float:
        if self._run is None or self._run.phase not in ("waiting", "open"):
            return 0.0
        return max(0.0, self._run.deadline - self._clock())

    def _count_missing(self) -> float:
        """Counts when asked: at each upload it would take the square of the clients."""
        run = self._run
        return 0.0 if run is None or run.phase != "open" else float(len(run.awaited - run.receipts.keys()))

    def _count_to_quorum(self) -> float:
        run = self._run
        return 0.0 if run is None or run.phase != "open" else float(max(0, run.quorum - len(run.receipts)))

    def close_round(self, run: Run, *, now: float) -> None:
        """Records a round whose state is stored since `now`."""
        closed_at = run.closed_at or now
        self.rounds.labels("aggregated").inc()
        self.round_seconds.observe(closed_at - run.opened_at)
        self.aggregation_seconds.observe(now - closed_at)

    def watch_identities(self, identities: Mapping[str, TlsIdentity]) -> None:
        """Exports the remaining lifetime of the service's certificates."""
        register_expiry_metric(identities, PREFIX, self._registry)

    def share(self, directory: Path) -> WorkerMetrics:
        """Lets each worker answer for all that have a state directory beside this one."""
        self._workers = WorkerMetrics(self._registry, directory)
        return self._workers

    def text(self) -> bytes:
        return generate_latest(self._registry) if self._workers is None else self._workers.text()
