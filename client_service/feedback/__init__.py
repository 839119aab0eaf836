"""What has happened since the shard was written: a durable log of it, and what it changes in answers at once."""
