"""Stores a silo's models on its disk: files, versions, and refits on all data."""
