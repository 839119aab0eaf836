"""Secure aggregation: the aggregator learns the clients' sum, and no single update.

After Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017. Both halves
are pure functions: no HTTP, no disk, no clock. docs/secure-aggregation.md says what it hides from whom, and what not.
"""
