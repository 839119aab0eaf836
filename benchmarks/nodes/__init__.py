"""Benchmarks of silos of node graphs."""
