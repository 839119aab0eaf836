"""State that lasts: rows in SQLite and bodies as files beside it, or rows on PostgreSQL and bodies in a bucket.

Every transition is durable before it is answered.
"""
