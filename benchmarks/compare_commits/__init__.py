"""Two commits, the same seeded runs: proof that a restructuring has changed no digest and reads the same state."""
