"""Experiments that see more than one client's data. No service may import this package."""
