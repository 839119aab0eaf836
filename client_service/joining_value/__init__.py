"""What joining a federation is worth to a silo: forecast before, comparison after."""
