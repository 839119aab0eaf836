"""Value of joining a federation for a silo: forecast before, comparison after."""
