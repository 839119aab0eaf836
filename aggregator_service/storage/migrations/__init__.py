"""Revisions of the database's tables, oldest first, one module each.

`revision` and `down_revision` give its place. A change of `storage/tables.py` needs a new module with the next number
that does the same to an existing database. A released revision is never changed. A test compares the newest revision
with the tables.

A fresh PostgreSQL database begins with the tables of the newest revision. So revisions up to 0010 are for SQLite
alone, and later ones are for both.
"""
