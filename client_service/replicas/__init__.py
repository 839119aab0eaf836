"""Serving processes beside the client that trains."""
