"""What joining a federation is worth to this silo: a forecast before a run, a comparison after one. Nothing is sent."""
