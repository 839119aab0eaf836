"""Interactions and item metadata posted since the shard was written."""
