"""Who has sent a request: key pairs, the folder of registered public keys, and HTTP Message Signatures (RFC 9421)."""
