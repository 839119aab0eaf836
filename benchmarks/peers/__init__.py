"""Comparison with other projects, each in its own environment on the same machine."""
