"""A silo's data: ids, interactions and sessions, in memory and in files."""
