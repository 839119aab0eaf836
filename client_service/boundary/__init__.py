"""What may leave a silo and what has left: gate, calls, ledger, policy."""
