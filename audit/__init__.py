"""Privacy report and live probes: what crossed the boundary, and what could. No torch."""
