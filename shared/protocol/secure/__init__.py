"""Secure aggregation: the aggregator learns the sum of the clients' updates, and of no single one.

After Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017. Both halves as
pure functions: no HTTP, no disk, no clock. docs/secure-aggregation.md says what it hides from whom, and what not.
"""
