"""Durable state: rows in SQLite or PostgreSQL, bodies in files or a bucket.

Every transition is stored before it is answered.
"""
