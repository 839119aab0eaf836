"""Divides a data set among silos: methods, catalogue, shard folders."""
