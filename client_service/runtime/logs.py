"""The client's event log."""

from shared.web.logs import logger

LOGGER = logger("client_service")
