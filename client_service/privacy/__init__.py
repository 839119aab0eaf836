"""Differential privacy of a silo's releases: mechanism, noise, accounting."""
