"""The privacy report and the live probes: ledgers and the aggregator's record -> what crossed. No torch."""
