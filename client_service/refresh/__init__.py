"""Changed data become a new shard and a refitted model."""
