"""Reads a silo's compiled shard and model from folders of mapped arrays.

Nothing here needs torch, polars or scipy.
"""
