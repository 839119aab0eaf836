"""Workers at one port: whichever answers, it answers for all, and nothing counts twice or goes down."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from aggregator_service.rounds.metrics import AggregatorMetrics
from aggregator_service.rounds.worker_metrics import FILE, FRESH_SECONDS, forget_workers

P = "lpsfed_aggregator"


def worker(folder: Path, number: int, streams: int = 0, *, ready: bool = True) -> AggregatorMetrics:
    metrics = AggregatorMetrics()
    (folder / f"worker-{number}").mkdir(exist_ok=True)
    metrics.watch_streams(lambda: streams)
    metrics.watch_state(folder, lambda: None if ready else "it starts", lambda: None)
    metrics.share(folder / f"worker-{number}").write()
    return metrics


def told(metrics: AggregatorMetrics) -> dict[tuple[str, str], float]:
    samples = [one for family in text_string_to_metric_families(metrics.text().decode()) for one in family.samples]
    found = {(one.name.removeprefix(f"{P}_"), ",".join(one.labels.values())): one.value for one in samples}
    assert len(found) == len(samples)
    return found


def test_counters_and_histograms_are_sums_whichever_worker_answers(tmp_path: Path) -> None:
    one, two = worker(tmp_path, 0), worker(tmp_path, 1)
    one.uploads.labels("accepted").inc(3)
    two.uploads.labels("accepted").inc(4)
    two.uploads.labels("repeated").inc()
    for metrics, seconds in ((one, 0.01), (two, 0.02), (two, 3.0)):
        metrics.requests.labels("GET", "/v1/runs", "200").observe(seconds)
    two.text()
    for answering in (one, two):
        found = told(answering)
        assert found["uploads_total", "accepted"] == 7 and found["uploads_total", "repeated"] == 1
        assert found["request_seconds_count", "GET,/v1/runs,200"] == 3
        assert found["request_seconds_sum", "GET,/v1/runs,200"] == pytest.approx(3.03)
        assert [value for (name, labels), value in found.items() if name == "request_seconds_bucket"] == sorted(
            value for (name, labels), value in found.items() if name == "request_seconds_bucket"
        )
        assert found["uploads_created", "accepted"] < time.time()


def test_a_worker_goes_on_from_the_counts_of_the_dead_one_whose_place_it_has(tmp_path: Path) -> None:
    one, dead = worker(tmp_path, 0), worker(tmp_path, 1, streams=5)
    dead.strangers.inc(2)
    dead.text()
    assert told(one)["strangers_total", ""] == 2
    after = worker(tmp_path, 1, streams=1)
    after.strangers.inc()
    assert told(after)["strangers_total", ""] == told(one)["strangers_total", ""] == 3
    assert told(one)["streams", ""] == 1
    forget_workers(tmp_path)
    assert told(worker(tmp_path, 0))["strangers_total", ""] == 0


def test_gauges_are_the_sum_the_least_or_the_answering_workers(tmp_path: Path) -> None:
    one, two = worker(tmp_path, 0, streams=2), worker(tmp_path, 1, streams=3, ready=False)
    one.clients.set(7)
    two.clients.set(6)
    two.text()
    found = told(one)
    assert (found["streams", ""], found["ready", ""], found["clients", ""]) == (5, 0, 7)
    old = time.time() - FRESH_SECONDS - 1
    os.utime(tmp_path / "worker-1" / FILE, (old, old))
    assert (told(one)["streams", ""], told(one)["ready", ""]) == (2, 1)


def test_a_damaged_file_counts_for_nothing(tmp_path: Path) -> None:
    one = worker(tmp_path, 0)
    worker(tmp_path, 1)
    for damaged in ("", "[", "[[1]]", "[[],[],[]"):
        (tmp_path / "worker-1" / FILE).write_text(damaged)
        assert told(one)["strangers_total", ""] == 0
        worker(tmp_path, 1)
