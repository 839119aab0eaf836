"""Client of one silo: trains on its shard, sends only declared values, and answers recommendations."""

import os

# Polars' own allocator keeps what it has freed, a hundred megabytes of a shard's tables, unless it is told before it
# is loaded.
os.environ.setdefault("_RJEM_MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0")
