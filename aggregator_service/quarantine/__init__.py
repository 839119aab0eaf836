"""Clients of which nothing is taken: who shuts them out, and what follows for the run at hand."""
