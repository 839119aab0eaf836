"""Where the tables lie: in a SQLite file by default, or on a PostgreSQL server. Each file is one `TableEngine`."""
