"""One silo: it owns a shard, trains on it, lets nothing but declared values leave, and answers recommendations."""
