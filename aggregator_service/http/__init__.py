"""HTTP around the coordinator: who calls, what is refused by its head, what is recorded, and the routes."""
