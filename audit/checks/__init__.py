"""Checks of the privacy report: ledgers, records, signatures, heads, presence."""
