"""Faults planted in a running Compose federation, which its report must name."""
