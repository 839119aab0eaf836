"""Aggregation of a round's updates, and the parameters that each client gets from the result."""
