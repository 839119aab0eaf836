"""Sums of statistics: what a silo adds to each, what the sums become, and how the silo uses that."""
