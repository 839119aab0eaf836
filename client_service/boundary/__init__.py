"""What may cross and what crossed: the gate, the calls to the aggregator, the ledger."""
