"""The coordinator: it sees named arrays and scalars, never a user, an item or an interaction."""
