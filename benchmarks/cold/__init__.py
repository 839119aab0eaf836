"""Measures the ranking of cold items, which have no interactions, by their text."""
