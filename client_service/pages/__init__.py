"""The silo's own page: where it stands, what it has learnt, and all that left it."""
