"""Events with fields -> one JSON line each. Silent below warnings until `configure` is called."""

from __future__ import annotations

import logging

import structlog

_STANDARD = logging.getLogger("aggregator_service")

LOGGER: structlog.stdlib.BoundLogger = structlog.wrap_logger(
    _STANDARD,
    processors=[
        structlog.stdlib.filter_by_level,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        structlog.processors.JSONRenderer(),
    ],
    wrapper_class=structlog.stdlib.BoundLogger,
    cache_logger_on_first_use=False,
)


def configure(level: str) -> None:
    """For a process of its own: lines to stderr, this package's from `level` on."""
    logging.basicConfig(format="%(message)s")
    _STANDARD.setLevel(level.upper())
