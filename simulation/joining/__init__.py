"""A silo's way into a federation: invitation, settings file, keys, shard."""
