"""Secure aggregation at the client: keys, masks, members, memory of rounds."""
