"""Comparison of two commits by seeded runs: equal digests, and state that both can read."""
