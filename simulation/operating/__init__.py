"""Calls of operators and applications to running services, and checks of a machine."""
