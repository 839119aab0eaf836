"""The compiled form of a silo's shard and model: folders of mapped arrays, read without torch, polars or scipy."""
