"""The common basis in a silo: its part of the sums, what the sums become, and where that is kept."""
