"""The aggregator's event log."""

from shared.web.logs import logger

LOGGER = logger("aggregator_service")
