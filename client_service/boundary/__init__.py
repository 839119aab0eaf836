"""Boundary of a silo: policy and gate before calls leave, ledger of all calls."""
