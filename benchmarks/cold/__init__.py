"""Measures how well methods rank cold items, which nobody has, by their text."""
