"""Differential privacy at the client: what leaves is clipped and noised here, and what that spends is on record."""
