"""Readers of interaction data in the formats of `formats.py`, and their splits."""
