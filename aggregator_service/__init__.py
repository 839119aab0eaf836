"""Aggregator of a federation, which sees named arrays and scalars, never users or items."""
