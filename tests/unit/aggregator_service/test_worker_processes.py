"""Settings of the workers at one port: what they share, and their part of its limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from aggregator_service.worker_processes import worker_settings
from tests.support.small import small_aggregator

DATABASE = "postgresql+psycopg://lpsfed:secret@127.0.0.1/lpsfed"


@pytest.mark.parametrize(
    ("given", "shares"),
    [
        ({"host": "127.0.0.1"}, (0.0, 171, 43, None)),
        ({"requests_per_second": 30.0, "most_connections": 10, "kept_connections": 9}, (10.0, 4, 43, 3)),
        ({"most_connections_of_address": 0}, (0.0, 171, 0, None)),
    ],
)
def test_each_worker_has_its_part_of_the_ports_limits(
    tmp_path: Path, given: dict[str, object], shares: tuple[float | None, ...]
) -> None:
    settings = small_aggregator(tmp_path, workers=3, database=DATABASE, **given)
    one, two = (worker_settings(settings, number, 8801) for number in range(2))
    names = ("requests_per_second", "most_connections", "most_connections_of_address", "kept_connections")
    assert tuple(getattr(one, name) for name in names) == shares
    assert one.connection_limiter().kept < one.most_connections
    assert one.state_directory != two.state_directory and (one.blobs, one.registry) == (two.blobs, two.registry)


def test_a_port_that_others_reach_has_the_usual_rate_for_all_workers_together(tmp_path: Path) -> None:
    settings = small_aggregator(tmp_path, workers=4, database=DATABASE, host="0.0.0.0")
    assert worker_settings(settings, 0, 8801).rate_limit == 25.0
