"""Compiles a silo's shard and model into folders of arrays, for the processes that answer."""
