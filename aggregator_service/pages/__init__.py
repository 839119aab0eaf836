"""Operator's page: the federation's state, its rounds, clients and runs, and the audit log."""
