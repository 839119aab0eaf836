"""Writes what a silo answers from: its shard and its model, compiled into folders of arrays."""
