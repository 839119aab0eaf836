"""FedUTR's tables: text at the start of item tables, leave-one-out over all items that a user has not met."""
