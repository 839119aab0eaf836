"""Prometheus metrics of a client.

No metric tells the quality of a model or the number of users, items or edges: those who read a silo's monitoring may be
others than those who may read its data.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from shared.message import Message

if TYPE_CHECKING:
    from shared.web.tls import TlsIdentity

PREFIX = "lpsfed_client"
PHASES = (
    "starting",
    "joining",
    "waiting",
    "preparing",
    "training",
    "uploading",
    "waiting for the round",
    "evaluating",
    "finished",
    "failed",
    "cancelled",
    "refused",
)


ROUND_ENDED = "round_ended"


class CountedSeries(Message):
    """A counter's value, or the time when a round ended last."""

    name: str
    labels: dict[str, str]
    value: float


class SpentBudget(Protocol):
    """Spent part of a privacy budget; `PrivacyOut` has these fields."""

    @property
    def epsilon(self) -> float: ...
    @property
    def budget(self) -> float: ...


class ClientState(Protocol):
    """State of a client that metrics show; `StatusOut` has these fields."""

    @property
    def phase(self) -> str: ...
    @property
    def problem(self) -> str | None: ...
    @property
    def model(self) -> str | None: ...


def join_metrics(own: bytes, others: bytes) -> bytes:
    """Joins two texts of metrics into one.

    Each family stands once, with the samples of both texts. Of a sample in both, the one of `own` stays.
    """
    families: dict[str, list[bytes]] = {}
    samples: dict[str, dict[bytes, bytes]] = {}
    for text in (own, others):
        name, known = "", set(families)
        for line in text.splitlines():
            if line.startswith((b"# HELP ", b"# TYPE ")):
                name = line.split(b" ", 3)[2].decode()
                if name not in known:
                    families.setdefault(name, []).append(line)
                samples.setdefault(name, {})
            elif line and not line.startswith(b"#"):
                samples[name].setdefault(line.rpartition(b" ")[0], line)
    lines = [line for name, head in families.items() for line in (*head, *samples[name].values())]
    return b"".join(line + b"\n" for line in lines)


class RequestMetrics:
    """Metrics of a process that answers requests, in a registry of its own."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        self.serving = Gauge(f"{PREFIX}_serving", "1 while a trained model answers", registry=registry)
        self.requests = Histogram(
            f"{PREFIX}_request_seconds", "Latency by route", ["method", "route", "status"], registry=registry
        )

    def watch(self, identities: Mapping[str, TlsIdentity]) -> None:
        """Measures how long the service's certificates are valid."""
        if identities:
            from shared.web.tls import register_expiry_metric  # see `ListenSettings.identities`

            register_expiry_metric(identities, PREFIX, self._registry)

    def text(self) -> bytes:
        return generate_latest(self._registry)


class ClientMetrics(RequestMetrics):
    """Metrics of the trainer process: rounds, uploads, refusals, disk, and those of requests."""

    def __init__(self) -> None:
        super().__init__()
        registry = self._registry
        self.rounds = Counter(f"{PREFIX}_rounds", "Rounds taken part in", registry=registry)
        self.upload_bytes = Counter(f"{PREFIX}_upload_bytes", "Bytes of accepted updates", registry=registry)
        self.held_up = Counter(
            f"{PREFIX}_held_up", "Times that a problem blocked it, by reason", ["code"], registry=registry
        )
        self.uploads_refused = Counter(
            f"{PREFIX}_uploads_refused", "Refused uploads by reason", ["code"], registry=registry
        )
        self._phase = Gauge(f"{PREFIX}_phase", "1 for the current phase of the client", ["phase"], registry=registry)
        self._hindered = Gauge(f"{PREFIX}_hindered", "1 while a problem blocks the client", registry=registry)
        self._since = Gauge(f"{PREFIX}_seconds_since_round", "Seconds since a round, or the start", registry=registry)
        self._stream = Gauge(f"{PREFIX}_stream", "1 while it hears of changes by a held stream", registry=registry)
        self._free = Gauge(f"{PREFIX}_disk_free_bytes", "Free bytes of the state directory's disk", registry=registry)
        self._round_ended = time.monotonic()
        self._since.set_function(lambda: time.monotonic() - self._round_ended)

    def read_counts(self) -> list[CountedSeries]:
        """Returns the counters, for the process's next image."""
        found = [
            CountedSeries(name=name, labels=sample.labels, value=sample.value)
            for name, counter in self._counters().items()
            for family in counter.collect()
            for sample in family.samples
            if sample.name.endswith("_total")
        ]
        since = CountedSeries(name=ROUND_ENDED, labels={}, value=self._round_ended)
        return [*found, since]

    def restore_counts(self, counts: Iterable[CountedSeries]) -> None:
        """Restores the counters of the process's earlier image."""
        counters = self._counters()
        for one in counts:
            if one.name == ROUND_ENDED:
                self._round_ended = one.value
            else:
                counter = counters[one.name]
                (counter.labels(**one.labels) if one.labels else counter).inc(one.value)

    def _counters(self) -> dict[str, Counter]:
        return {name: value for name, value in vars(self).items() if isinstance(value, Counter)}

    def end_round(self) -> None:
        """Counts a round that the client has applied and evaluated."""
        self.rounds.inc()
        self._round_ended = time.monotonic()

    def watch_state(self, directory: Path, status: Callable[[], ClientState]) -> None:
        """Measures the client's phase, whether it is blocked, and its free disk space."""
        for phase in PHASES:
            self._phase.labels(phase).set_function(lambda phase=phase: float(status().phase == phase))  # type: ignore[misc]
        self._hindered.set_function(lambda: float(status().problem is not None))
        self.serving.set_function(lambda: float(status().model is not None))
        self._free.set_function(lambda: float(shutil.disk_usage(directory).free))

    def watch_stream(self, is_held: Callable[[], bool]) -> None:
        """Measures whether the client hears of changes by a stream; otherwise it polls."""
        self._stream.set_function(lambda: float(is_held()))

    def watch_privacy(self, read: Callable[[], SpentBudget]) -> None:
        """Measures how much of the privacy budget is spent; neither figure depends on the data."""
        spent = Gauge(f"{PREFIX}_privacy_epsilon", "Epsilon that releases of this shard spent", registry=self._registry)
        budget = Gauge(f"{PREFIX}_privacy_budget", "Epsilon that a shard may spend", registry=self._registry)
        spent.set_function(lambda: read().epsilon)
        budget.set_function(lambda: read().budget)
