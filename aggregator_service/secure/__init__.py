"""Secure aggregation at the aggregator: it passes messages on, and learns the sum of the masked vectors."""
