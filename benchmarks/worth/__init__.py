"""Comparison of the forecasts of `lpsfed worth` with training on pooled silos."""
