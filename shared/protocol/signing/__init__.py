"""Senders of requests: key pairs, registered public keys, and HTTP Message Signatures (RFC 9421)."""
