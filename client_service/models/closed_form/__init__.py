"""Scorers in closed form: each has a file, and registry.py lists them."""
