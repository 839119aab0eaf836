"""Databases for the tables: a SQLite file by default, or a PostgreSQL server.

Each module is one `TableEngine`.
"""
