"""The common basis: a silo's part of its sums, and what a silo computes from it."""
