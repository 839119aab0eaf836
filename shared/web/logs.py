"""Events with fields -> one JSON line each. Silent below warnings until `configure` is called."""

from __future__ import annotations

import logging

import structlog


def logger(package: str) -> structlog.stdlib.BoundLogger:
    """The event log of one service, on top of the standard logger of its package's name."""
    bound: structlog.stdlib.BoundLogger = structlog.wrap_logger(
        logging.getLogger(package),
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
    return bound


def configure(package: str, level: str) -> None:
    """For a process of its own: lines to stderr, this package's from `level` on."""
    logging.basicConfig(format="%(message)s")
    logging.getLogger(package).setLevel(level.upper())
