"""Recommendations from a trained model: lists, filters, explanations, stored models."""
