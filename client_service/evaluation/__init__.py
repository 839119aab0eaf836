"""Metrics of ranked lists, and the baselines that need no training."""
