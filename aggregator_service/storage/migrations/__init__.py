"""The revisions of the database's tables, in the order in which they came: one file each.

`revision` and `down_revision` say where it stands. Whoever changes `storage/tables.py` adds a file with the next number
that does the same to a database that is there already. It is never changed once a release has it. A test holds the
newest revision against the tables.

A fresh PostgreSQL database begins with the tables of the newest revision. So those up to 0010 are SQLite's alone, and
later ones are for both.
"""
