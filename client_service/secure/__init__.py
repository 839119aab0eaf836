"""Secure aggregation at the client: a round's secrets on its disk, the exchange with the others, its mixture."""
