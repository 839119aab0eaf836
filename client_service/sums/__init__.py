"""Sums of statistics over all silos: a silo's part, the result, and its use."""
