"""State on the disk: rows in SQLite, bodies as files beside it. Every transition is durable before it is answered."""
