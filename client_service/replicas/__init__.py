"""Processes that answer a silo's applications beside the one that trains."""
