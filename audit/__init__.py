"""The privacy report and the live probes of the boundary: ledgers and the aggregator's record -> what crossed. No torch."""
